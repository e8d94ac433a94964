// Predicts the time of a step on one GPU of a cluster from the work that the meta device counted. docs/plan.md explains the model
// and which of its numbers are measured and which are assumed.
#pragma once

#include <span>
#include <string_view>

#include "octet/plan/cluster.h"

namespace octet::plan {

// The fraction of a hidden collective's time that costs nothing. The rest slows the computation, because NCCL's kernels take
// multiprocessors and memory bandwidth from it. Fitted by least squares to six runs on two H200 GPUs (docs/plan.md);
// tests/app/plan_rows_test.cpp repeats the fit.
inline constexpr double kOverlap = 0.41;

// The time of one call of an op within a step.
//   product    launch + max(flops / (rate x share x fill), bytes / copy); fill as in time_model.h
//   attention  launch + flops / (rate x share) + bytes / (rate at which cuDNN reads and writes its operands)
//   exchange   exchange_seconds() in cluster.h
//   other      launch + bytes / (copy x share)
double op_seconds(const Cluster& cluster, const Spans& spans, std::string_view op, const Work& work);

enum class Bound : std::uint8_t { compute, memory, nvlink, network };
std::string_view name_of(Bound bound);

// The prediction for a step of one GPU.
struct Step {
  double seconds = 0;
  double compute_s = 0;  // products and attention
  double memory_s = 0;   // all other computation, which is bound by memory
  double waited_s = 0;   // the computation waits for collectives, or they run on its stream
  double exposed_s = 0;  // cost of collectives: waited_s + (1 - kOverlap) (wire_s - waited_s - what copy engines fetch)
  double bubble_s = 0;   // a pipeline stage has nothing to do
  double copies_s = 0;   // the computation waits for optimizer states from host memory
  double wire_s = 0;     // all collectives, including hidden ones
  double flops = 0, fp8_flops = 0, memory_bytes = 0;
  Sent sent;
  Bound bound = Bound::compute;
  double tokens_per_s = 0;
  double model_flops_per_s = 0;  // operations that MFU counts
};

// Computes the prediction. `compute` and `wire` are the profiles of the computation and communication streams. `seconds` is the
// time of the step when both streams run concurrently and each op takes op_seconds(). `tokens` is the number of tokens of this
// GPU in the step, and `flops_per_token` the operations that MFU counts for each. `bubble_s` comes on top of `seconds`, and
// `copies_s` is a part of it.
Step step_of(const Cluster& cluster, const Spans& spans, std::span<const OpTime> compute, std::span<const OpTime> params,
             double seconds, double tokens, double flops_per_token, double bubble_s = 0, double copies_s = 0);

}  // namespace octet::plan
