// The records of a run: one per logged step, one per sampled tensor, one for the run. visit_fields declares and explains each
// field once; every sink, every reader and docs/reference/files.md use that list, so a new metric is one member and one line.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace octet::telemetry {

inline constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

// Numbers with names that the user chose, in the user's order. In JSON an object, or null if there are none.
using NamedNumbers = std::vector<std::pair<std::string, double>>;

// One logged step. Times and rates are means over the steps since the line before. A number that is not finite is written
// as null and read back as NaN; an optional that is empty is written as null and read back empty.
struct StepMetrics {
  std::int64_t step = 0;
  double loss = kUnknown;
  double grad_norm = kUnknown;
  double lr = kUnknown;
  std::int64_t tokens_seen = 0;
  double step_time_s = kUnknown;
  double data_time_s = kUnknown;
  double tokens_per_s = kUnknown;
  double tokens_per_s_per_gpu = kUnknown;
  double tflops_per_gpu = kUnknown;
  std::optional<double> mfu{};
  std::optional<double> mfu_fp8{};
  double memory_peak_gib = kUnknown;
  double fp8_flop_share = 0;
  std::optional<double> fp8_underflow_pct{};
  std::optional<double> fp8_saturated_pct{};
  std::int64_t skipped_steps = 0;
  double samples_per_s = kUnknown;
  std::optional<double> comm_exposed_s{};
  std::optional<double> pipeline_bubble_s{};
  std::optional<double> expert_balance{};
  std::optional<double> router_z{};
  std::optional<double> eval_loss{};
  NamedNumbers eval_losses{};
  double eta_s = kUnknown;
};

// One tensor of one sampled step. `tensor` is "<linear>.x" (input), "<linear>.w" (weight) or "<linear>.g" (output gradient), or
// "<norm>.n", the weight of a norm, of which only `edge_pct` is known.
struct HealthSample {
  std::int64_t step = 0;
  std::string tensor{};
  double amax = kUnknown;
  double scale = kUnknown;
  double saturated_pct = kUnknown;
  double flushed_pct = kUnknown;
  double sqnr_db = kUnknown;
  double kurtosis = kUnknown;
  double amax_to_rms = kUnknown;
  std::optional<double> alignment{};
  std::optional<double> top_channel_pct{};
  std::optional<double> edge_pct{};

  bool of_linear() const { return !tensor.ends_with(".n"); }
};

// Attention of one layer in one sampled step. A log-sum-exp is the logarithm of the sum of exp(logit) over the keys that a token sees. Its
// range is that of the heads and tokens of rank 0's first micro-batch.
struct AttentionSample {
  std::int64_t step = 0;
  std::string layer{};
  double lse_min = kUnknown;
  double lse_max = kUnknown;
};

// An expert starves if it is chosen less often than this multiple of its fair share. The fair share is the load if all experts
// were chosen equally often. A starving expert learns next to nothing.
inline constexpr double kStarved = 0.1;

// The mixture of experts of one layer in one sampled step: how often each of its experts was chosen, by the tokens of all ranks.
struct ExpertSample {
  std::int64_t step = 0;
  std::string layer{};
  std::vector<std::int64_t> chosen{};
};

// The text of a JSON object, which the file holds as an object. Only read_run_info() reads it.
struct JsonText {
  std::string text = "null";
};

// run.json: the facts of a run. Written before the first step, after each checkpoint and at the end.
struct RunInfo {
  std::string name{};
  std::string recipe{};
  std::string repeat_of{};
  std::string device{};
  std::string device_name{};
  std::string model{};
  std::int64_t parameters = 0;
  std::int64_t layers = 0;
  std::int64_t processes = 1;
  std::int64_t seq_len = 0;
  std::int64_t micro_batch_size = 0;
  std::int64_t global_batch_size = 0;
  std::int64_t tokens_per_step = 0;
  std::int64_t steps = 0;
  std::int64_t seed = 0;
  double lr = kUnknown;
  std::string data{};
  double initial_eval_loss = kUnknown;
  double initial_eval_loss_bf16 = kUnknown;
  std::string version{};
  std::string commit{};
  std::string first_started{};
  std::string started{};
  std::string job{};
  std::int64_t attempt = 0;
  std::string changes{};
  std::int64_t until = 0, checkpoint_step = 0, exported_step = 0;
  std::string timeline{};
  std::int64_t best_step = 0;
  double best_eval_loss = kUnknown;
  std::int64_t lost_records = 0;
  std::string ended{};
  std::int64_t code = -1;
  std::int64_t skipped_steps = -1;
  JsonText versions{};
  JsonText config{};
};

// The names of a field in the sinks. TensorBoard's tags are torchtitan's where torchtitan has the metric.
struct FieldName {
  const char* json;
  const char* help;                 // one sentence with the unit, for docs/reference/files.md
  const char* tensorboard = "";     // "": not in TensorBoard; of NamedNumbers: ends with NAME, which stands for each name
  double tensorboard_factor = 1;    // torchtitan counts in percent where the JSON has a fraction
};

// Calls visit(FieldName, member&) for each field in the order of the file. `Record` may be const.
template <class Record, class Visitor>
  requires std::is_same_v<std::remove_const_t<Record>, StepMetrics>
void visit_fields(Record& r, Visitor&& visit) {
  visit(FieldName{.json = "step", .help = "Number of finished steps, from 1."}, r.step);
  visit(FieldName{.json = "loss",
                  .help = "Mean loss over the tokens of this step, of all ranks and micro-batches, in nats.",
                  .tensorboard = "loss_metrics/global_avg_loss"},
        r.loss);
  visit(FieldName{.json = "grad_norm", .help = "Global norm of the gradient before clipping.", .tensorboard = "grad_norm"}, r.grad_norm);
  visit(FieldName{.json = "lr", .help = "Learning rate of this step.", .tensorboard = "lr"}, r.lr);
  visit(FieldName{.json = "tokens_seen",
                  .help = "Tokens of all ranks since the start of training, including this step.",
                  .tensorboard = "n_tokens_seen"},
        r.tokens_seen);
  visit(FieldName{.json = "step_time_s",
                  .help = "Seconds per step, averaged since the previous line.",
                  .tensorboard = "time_metrics/end_to_end(s)"},
        r.step_time_s);
  visit(FieldName{.json = "data_time_s",
                  .help = "Seconds of step_time_s that waited for data.",
                  .tensorboard = "time_metrics/data_loading(s)"},
        r.data_time_s);
  visit(FieldName{.json = "tokens_per_s",
                  .help = "Tokens per second of all ranks, averaged since the previous line.",
                  .tensorboard = "throughput_all_ranks(tps)"},
        r.tokens_per_s);
  visit(FieldName{.json = "tokens_per_s_per_gpu",
                  .help = "Tokens per second of one rank; on the CPU of one process.",
                  .tensorboard = "throughput(tps)"},
        r.tokens_per_s_per_gpu);
  visit(FieldName{.json = "tflops_per_gpu",
                  .help = "FLOPs of the model, without recomputation, in 1e12 per second and rank.",
                  .tensorboard = "tflops"},
        r.tflops_per_gpu);
  visit(FieldName{.json = "mfu",
                  .help = "Fraction of the GPU's BF16 peak; null where the peak is unknown.",
                  .tensorboard = "mfu(%)", .tensorboard_factor = 100},
        r.mfu);
  visit(FieldName{.json = "mfu_fp8",
                  .help = "Fraction of the peak that mixes FP8 and BF16 by fp8_flop_share.",
                  .tensorboard = "mfu_fp8(%)", .tensorboard_factor = 100},
        r.mfu_fp8);
  visit(FieldName{.json = "memory_peak_gib",
                  .help = "Most device memory that rank 0 had allocated, in GiB (2^30 bytes).",
                  .tensorboard = "memory/max_reserved(GiB)"},
        r.memory_peak_gib);
  visit(FieldName{.json = "fp8_flop_share",
                  .help = "Fraction of FP8 products in rank 0's FLOPs of a micro-batch and an optimizer step, recomputed and "
                          "element-wise ops included.",
                  .tensorboard = "fp8/flop_share(%)", .tensorboard_factor = 100},
        r.fp8_flop_share);
  visit(FieldName{.json = "fp8_underflow_pct",
                  .help = "Per cent of non-zero elements that became zero, as a mean over tensors; null unless sampled.",
                  .tensorboard = "fp8/underflow(%)"},
        r.fp8_underflow_pct);
  visit(FieldName{.json = "fp8_saturated_pct",
                  .help = "Per cent of elements clamped to the largest code, as a mean over tensors; null unless sampled.",
                  .tensorboard = "fp8/saturated(%)"},
        r.fp8_saturated_pct);
  visit(FieldName{.json = "skipped_steps",
                  .help = "Steps since the start of training whose loss or gradient was not finite.",
                  .tensorboard = "skipped_steps"},
        r.skipped_steps);
  visit(FieldName{.json = "samples_per_s",
                  .help = "Sequences per second of all ranks.",
                  .tensorboard = "throughput(samples/s)"},
        r.samples_per_s);
  visit(
      FieldName{.json = "comm_exposed_s",
                .help =
                    "Seconds of this step in which rank 0 waited for communication that computation did not hide, apart from the "
                    "pipeline's bubble; 0 on one rank.",
                .tensorboard = "time_metrics/comm_exposed(s)"},
      r.comm_exposed_s);
  visit(
      FieldName{
          .json = "pipeline_bubble_s",
          .help =
              "Seconds of this step that a rank waited for other pipeline stages, the mean over all ranks; null with one stage.",
          .tensorboard = "time_metrics/pipeline_bubble(s)"},
      r.pipeline_bubble_s);
  visit(FieldName{.json = "expert_balance",
                  .help = "Mixture of experts: mean balance over tokens and layers; 1 if all experts are chosen equally often.",
                  .tensorboard = "experts/balance"},
        r.expert_balance);
  visit(FieldName{.json = "router_z",
                  .help = "Mixture of experts: mean square of the log-sum-exp of the router's logits.",
                  .tensorboard = "experts/router_z"},
        r.router_z);
  visit(FieldName{.json = "eval_loss",
                  .help =
                      "Mean loss over the held-out tokens; null unless this step evaluated. With several held-out sets, that of "
                      "evaluation.decides.",
                  .tensorboard = "validation_metrics/global_avg_loss"},
        r.eval_loss);
  visit(
      FieldName{
          .json = "eval_losses",
          .help = "Mean loss over each [[evaluation.source]], by its name; null without these, and unless this step evaluated.",
          .tensorboard = "validation_metrics/loss/NAME"},
      r.eval_losses);
  visit(FieldName{.json = "eta_s",
                  .help = "Seconds from this line to the last step, or to that of --until, at the mean pace since the process "
                          "began, including evaluations and saves."},
        r.eta_s);
}

template <class Record, class Visitor>
  requires std::is_same_v<std::remove_const_t<Record>, HealthSample>
void visit_fields(Record& r, Visitor&& visit) {
  visit(FieldName{.json = "step", .help = "Step of the sample."}, r.step);
  visit(FieldName{.json = "tensor",
                  .help = "<linear>.x is an input, <linear>.w a weight and <linear>.g an output gradient; <norm>.n is the weight "
                          "of a norm, in mxfp8."},
        r.tensor);
  visit(FieldName{.json = "amax", .help = "Largest absolute value."}, r.amax);
  visit(FieldName{.json = "scale", .help = "Codes are x * scale; the geometric mean if there are several scales."}, r.scale);
  visit(FieldName{.json = "saturated_pct", .help = "Per cent of all elements clamped to the largest code."}, r.saturated_pct);
  visit(FieldName{.json = "flushed_pct", .help = "Per cent of the non-zero elements that became zero."}, r.flushed_pct);
  visit(FieldName{.json = "sqnr_db", .help = "Signal to quantisation noise: 10 log10(sum x^2 / sum (x - decoded)^2), in dB."}, r.sqnr_db);
  visit(FieldName{.json = "kurtosis",
                  .help = "n sum x^4 / (sum x^2)^2 over the n elements that are not zero: 3 for a normal "
                          "distribution, and larger the more a few elements stand out."},
        r.kurtosis);
  visit(FieldName{.json = "amax_to_rms", .help = "Largest absolute value divided by the root mean square of the elements that are not zero."}, r.amax_to_rms);
  visit(FieldName{.json = "alignment",
                  .help = "Largest |cosine| between the gate's and the up projection's row of a channel; null except for "
                          "weights of gated layers."},
        r.alignment);
  visit(FieldName{.json = "top_channel_pct",
                  .help = "Per cent of the sum of all channels' largest absolute values that the largest channel holds; null "
                          "except for what SwiGLU gives to a down projection."},
        r.top_channel_pct);
  visit(FieldName{.json = "edge_pct",
                  .help = "Per cent of a norm's weights that would get the largest code of their block of 32 as the MX "
                          "specification scales it; null for other tensors, which have the other fields instead."},
        r.edge_pct);
}

template <class Record, class Visitor>
  requires std::is_same_v<std::remove_const_t<Record>, AttentionSample>
void visit_fields(Record& r, Visitor&& visit) {
  visit(FieldName{.json = "step", .help = "Step of the sample."}, r.step);
  visit(FieldName{.json = "layer", .help = "Name of the attention layer."}, r.layer);
  visit(FieldName{.json = "lse_min", .help = "Smallest log-sum-exp of the logits, over rank 0's heads and tokens of one micro-batch."},
        r.lse_min);
  visit(FieldName{.json = "lse_max", .help = "Largest log-sum-exp of the logits."}, r.lse_max);
}

template <class Record, class Visitor>
  requires std::is_same_v<std::remove_const_t<Record>, ExpertSample>
void visit_fields(Record& r, Visitor&& visit) {
  visit(FieldName{.json = "step", .help = "Step of the sample."}, r.step);
  visit(FieldName{.json = "layer", .help = "Name of the mixture."}, r.layer);
  visit(FieldName{.json = "chosen", .help = "How often each expert was chosen in this step, by the tokens of all ranks."}, r.chosen);
}

template <class Record, class Visitor>
  requires std::is_same_v<std::remove_const_t<Record>, RunInfo>
void visit_fields(Record& r, Visitor&& visit) {
  visit(FieldName{.json = "name", .help = "Name of the run in tables; in a comparison its recipe."}, r.name);
  visit(FieldName{.json = "recipe", .help = "Recipe of the run."}, r.recipe);
  visit(FieldName{.json = "repeat_of", .help = "Name of the run that this one repeats to show the spread, or \"\"."}, r.repeat_of);
  visit(FieldName{.json = "device", .help = "cpu or cuda."}, r.device);
  visit(FieldName{.json = "device_name", .help = "Processor or GPU."}, r.device_name);
  visit(FieldName{.json = "model", .help = "Preset or model directory."}, r.model);
  visit(FieldName{.json = "parameters", .help = "Number of parameters."}, r.parameters);
  visit(FieldName{.json = "layers", .help = "Number of blocks."}, r.layers);
  visit(FieldName{.json = "processes", .help = "Number of ranks."}, r.processes);
  visit(FieldName{.json = "seq_len", .help = "Tokens in a sequence."}, r.seq_len);
  visit(FieldName{.json = "micro_batch_size", .help = "Sequences that a data-parallel rank computes at once."}, r.micro_batch_size);
  visit(FieldName{.json = "global_batch_size", .help = "Sequences in a step."}, r.global_batch_size);
  visit(FieldName{.json = "tokens_per_step", .help = "Tokens in a step."}, r.tokens_per_step);
  visit(FieldName{.json = "steps", .help = "Planned number of steps."}, r.steps);
  visit(FieldName{.json = "seed", .help = "Seed of the run."}, r.seed);
  visit(FieldName{.json = "lr", .help = "Peak learning rate."}, r.lr);
  visit(FieldName{.json = "data", .help = "Description of the corpus."}, r.data);
  visit(FieldName{.json = "initial_eval_loss",
                  .help = "Held-out loss of the initial weights before step 1, in the recipe; null unless model.init_from is given."},
        r.initial_eval_loss);
  visit(FieldName{.json = "initial_eval_loss_bf16",
                  .help = "The same in BF16, if the recipe is FP8; null if its evaluation had no room."},
        r.initial_eval_loss_bf16);
  visit(FieldName{.json = "version", .help = "Version of octet."}, r.version);
  visit(FieldName{.json = "commit", .help = "Commit that octet was built from, or unknown."}, r.commit);
  visit(FieldName{.json = "first_started", .help = "Start of the run in UTC, ISO 8601."}, r.first_started);
  visit(FieldName{.json = "started",
                  .help = "Start of the last process that trained: later than first_started if the run was resumed."},
        r.started);
  visit(FieldName{.json = "job", .help = "`job` of attempts/, if a supervisor has started the process that trains, or \"\"."},
        r.job);
  visit(FieldName{.json = "attempt", .help = "Number of its attempt in attempts/; 0 without a supervisor."}, r.attempt);
  visit(FieldName{.json = "changes",
                  .help = "Settings that changed when the run continued from checkpoints, as \"step 20: KEY BEFORE -> NOW; "
                          "...\"."},
        r.changes);
  visit(FieldName{.json = "until", .help = "Step after which the last process ends or has ended, by --until; else 0."}, r.until);
  visit(FieldName{.json = "checkpoint_step",
                  .help = "Step of the newest checkpoint in this folder; 0 if there is none yet. A later start looks for it."},
        r.checkpoint_step);
  visit(FieldName{.json = "exported_step",
                  .help = "Step of the weights in model/ or adapter/, if this configuration has exported them; else 0."},
        r.exported_step);
  visit(FieldName{.json = "timeline",
                  .help = "Name of the run's history. A run continues only from snapshots in memory that have this name."},
        r.timeline);
  visit(
      FieldName{
          .json = "best_step",
          .help =
              "Step of the best evaluation up to the newest checkpoint; 0 before the first one. With evaluation.keep_best its "
              "checkpoint is kept."},
      r.best_step);
  visit(FieldName{.json = "best_eval_loss", .help = "eval_loss of the best evaluation; null before the first one."},
        r.best_eval_loss);
  visit(FieldName{.json = "lost_records", .help = "Records of metrics that could not be written, for example because the disk was full."},
        r.lost_records);
  visit(FieldName{.json = "ended", .help = "End of the process that trained, in UTC; \"\" while it trains, or if it was killed."}, r.ended);
  visit(FieldName{.json = "code", .help = "Exit code with which it ended; -1 until then."}, r.code);
  visit(FieldName{.json = "skipped_steps",
                  .help = "Steps since the start of training whose loss or gradient was not finite; -1 until it ended."},
        r.skipped_steps);
  visit(FieldName{.json = "versions", .help = "What octet was built for, and the libraries that compute."}, r.versions);
  visit(FieldName{.json = "config", .help = "Every key of the configuration, as `octet train --print-config` shows it."}, r.config);
}

}  // namespace octet::telemetry
