// The metrics that a run records: one StepMetrics per logged step, one HealthSample per
// sampled tensor, one RunInfo per run. visit_fields lists the fields of each; every
// writer and reader uses this list. A new metric needs a member and a line in that list.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <type_traits>

namespace octet::telemetry {

inline constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

// One logged step. Times and rates are means over the steps since the previous record. Files store a number that is not finite as
// null, which is read as NaN, and an empty optional as null, which is read as empty.
struct StepMetrics {
  std::int64_t step = 0;                    // number of steps finished; the first step is 1
  double loss = kUnknown;                   // nats; mean over the tokens of this step, over all ranks and micro-batches
  double grad_norm = kUnknown;              // norm of the whole gradient, before clipping
  double lr = kUnknown;
  std::int64_t tokens_seen = 0;             // tokens of all ranks since the start of training, including this step
  double step_time_s = kUnknown;
  double data_time_s = kUnknown;            // the part of step_time_s spent waiting for data
  double tokens_per_s = kUnknown;           // all ranks
  double tokens_per_s_per_gpu = kUnknown;   // per rank; on the CPU, per process
  double tflops_per_gpu = kUnknown;         // model FLOPs without recomputation, in 1e12 per second and rank
  std::optional<double> mfu{};                // fraction of the BF16 peak; empty if the device's peak is unknown
  std::optional<double> mfu_fp8{};            // fraction of a peak that mixes FP8 and BF16 peaks by fp8_flop_share
  double memory_peak_gib = kUnknown;        // largest amount of device memory that rank 0 had allocated, 2^30 bytes
  double fp8_flop_share = 0;                // fraction of the model's FLOPs that FP8 GEMMs compute
  std::optional<double> fp8_underflow_pct{};  // HealthSample::flushed_pct, mean over the tensors; sampled steps only
  std::optional<double> fp8_saturated_pct{};  // HealthSample::saturated_pct, mean over the tensors; sampled steps only
  std::int64_t skipped_steps = 0;           // since the start of training; skipped because loss or gradient was not finite
  double samples_per_s = kUnknown;          // sequences of all ranks
  // This step only, on rank 0: seconds that computation waited for other
  // ranks because communication was not overlapped. 0 on one rank.
  std::optional<double> comm_exposed_s{};
  std::optional<double> expert_balance{};     // mixture of experts; mean over tokens and layers, 1 if all are used equally
  std::optional<double> router_z{};           // mean square of the log-sum-exp of the router's logits
  std::optional<double> eval_loss{};          // mean over the held-out tokens; only on steps that evaluate
};

// One tensor of one sampled step. `tensor` is "<linear>.x" (input), "<linear>.w" (weight) or "<linear>.g" (output gradient).
struct HealthSample {
  std::int64_t step = 0;
  std::string tensor{};
  double amax = kUnknown;
  double scale = kUnknown;          // codes encode x * scale; with several scales, their geometric mean
  double saturated_pct = kUnknown;  // percentage of all elements that were clamped
  double flushed_pct = kUnknown;    // percentage of the non-zero elements that became zero
  double sqnr_db = kUnknown;        // signal to quantisation noise: 10 log10(sum x^2 / sum (x - decoded)^2)
};

// The contents of run.json: facts about the run that its report needs. Written once, before the first step.
struct RunInfo {
  std::string name{};               // the run's name in tables; in a comparison, the recipe's name
  std::string recipe{};             // "bf16", "fp8_delayed", ...
  std::string repeat_of{};          // the name of the run that this run repeats to measure the spread, or ""
  std::string device{};             // "cpu" or "cuda"
  std::string device_name{};        // the processor or GPU
  std::string model{};              // name of a preset or path of a directory
  std::int64_t parameters = 0;
  std::int64_t layers = 0;
  std::int64_t processes = 1;     // ranks
  std::int64_t seq_len = 0;
  std::int64_t micro_batch_size = 0;
  std::int64_t global_batch_size = 0;  // sequences per step
  std::int64_t tokens_per_step = 0;
  std::int64_t steps = 0;         // planned number of steps
  std::int64_t seed = 0;
  double lr = kUnknown;           // peak learning rate of the schedule
  std::string data{};               // a description of the corpus
  // For a run that continues from given weights: their held-out loss
  // before step 1, in the run's recipe. For an FP8 recipe also in BF16.
  double initial_eval_loss = kUnknown;
  double initial_eval_loss_bf16 = kUnknown;
  std::string version{};            // version of octet
  std::string started{};            // time of the start: UTC, ISO 8601
};

// A field's name in the JSON files and in TensorBoard. TensorBoard tags are torchtitan's if torchtitan has the metric.
struct FieldName {
  const char* json;
  const char* tensorboard = "";     // "": not written to TensorBoard
  double tensorboard_factor = 1;    // 100 if the tag is in percent and the JSON field is a fraction
};

// Calls visit(FieldName, member&) for each field, in the order in which files store them. `Record` may be const.
template <class Record, class Visitor>
  requires std::is_same_v<std::remove_const_t<Record>, StepMetrics>
void visit_fields(Record& r, Visitor&& visit) {
  visit(FieldName{"step"}, r.step);
  visit(FieldName{"loss", "loss_metrics/global_avg_loss"}, r.loss);
  visit(FieldName{"grad_norm", "grad_norm"}, r.grad_norm);
  visit(FieldName{"lr", "lr"}, r.lr);
  visit(FieldName{"tokens_seen", "n_tokens_seen"}, r.tokens_seen);
  visit(FieldName{"step_time_s", "time_metrics/end_to_end(s)"}, r.step_time_s);
  visit(FieldName{"data_time_s", "time_metrics/data_loading(s)"}, r.data_time_s);
  visit(FieldName{"tokens_per_s", "throughput_all_ranks(tps)"}, r.tokens_per_s);
  visit(FieldName{"tokens_per_s_per_gpu", "throughput(tps)"}, r.tokens_per_s_per_gpu);
  visit(FieldName{"tflops_per_gpu", "tflops"}, r.tflops_per_gpu);
  visit(FieldName{"mfu", "mfu(%)", 100}, r.mfu);
  visit(FieldName{"mfu_fp8", "mfu_fp8(%)", 100}, r.mfu_fp8);
  visit(FieldName{"memory_peak_gib", "memory/max_reserved(GiB)"}, r.memory_peak_gib);
  visit(FieldName{"fp8_flop_share", "fp8/flop_share(%)", 100}, r.fp8_flop_share);
  visit(FieldName{"fp8_underflow_pct", "fp8/underflow(%)"}, r.fp8_underflow_pct);
  visit(FieldName{"fp8_saturated_pct", "fp8/saturated(%)"}, r.fp8_saturated_pct);
  visit(FieldName{"skipped_steps", "skipped_steps"}, r.skipped_steps);
  visit(FieldName{"samples_per_s", "throughput(samples/s)"}, r.samples_per_s);
  visit(FieldName{"comm_exposed_s", "time_metrics/comm_exposed(s)"}, r.comm_exposed_s);
  visit(FieldName{"expert_balance", "experts/balance"}, r.expert_balance);
  visit(FieldName{"router_z", "experts/router_z"}, r.router_z);
  visit(FieldName{"eval_loss", "validation_metrics/global_avg_loss"}, r.eval_loss);
}

template <class Record, class Visitor>
  requires std::is_same_v<std::remove_const_t<Record>, HealthSample>
void visit_fields(Record& r, Visitor&& visit) {
  visit(FieldName{"step"}, r.step);
  visit(FieldName{"tensor"}, r.tensor);
  visit(FieldName{"amax"}, r.amax);
  visit(FieldName{"scale"}, r.scale);
  visit(FieldName{"saturated_pct"}, r.saturated_pct);
  visit(FieldName{"flushed_pct"}, r.flushed_pct);
  visit(FieldName{"sqnr_db"}, r.sqnr_db);
}

template <class Record, class Visitor>
  requires std::is_same_v<std::remove_const_t<Record>, RunInfo>
void visit_fields(Record& r, Visitor&& visit) {
  visit(FieldName{"name"}, r.name);
  visit(FieldName{"recipe"}, r.recipe);
  visit(FieldName{"repeat_of"}, r.repeat_of);
  visit(FieldName{"device"}, r.device);
  visit(FieldName{"device_name"}, r.device_name);
  visit(FieldName{"model"}, r.model);
  visit(FieldName{"parameters"}, r.parameters);
  visit(FieldName{"layers"}, r.layers);
  visit(FieldName{"processes"}, r.processes);
  visit(FieldName{"seq_len"}, r.seq_len);
  visit(FieldName{"micro_batch_size"}, r.micro_batch_size);
  visit(FieldName{"global_batch_size"}, r.global_batch_size);
  visit(FieldName{"tokens_per_step"}, r.tokens_per_step);
  visit(FieldName{"steps"}, r.steps);
  visit(FieldName{"seed"}, r.seed);
  visit(FieldName{"lr"}, r.lr);
  visit(FieldName{"data"}, r.data);
  visit(FieldName{"initial_eval_loss"}, r.initial_eval_loss);
  visit(FieldName{"initial_eval_loss_bf16"}, r.initial_eval_loss_bf16);
  visit(FieldName{"version"}, r.version);
  visit(FieldName{"started"}, r.started);
}

}  // namespace octet::telemetry
