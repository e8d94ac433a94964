// The time of a step on one GPU of a cluster, from what the meta device has counted of it (docs/plan.md says how, and what of it
// is measured and what assumed).
#pragma once

#include <span>
#include <string_view>

#include "octet/plan/cluster.h"

namespace octet::plan {

// What of a hidden second of exchanges costs nothing; the rest is what NCCL's kernels take of multiprocessors and memory from the
// computation. The least squares of six rows of two H200 (docs/plan.md); tests/app/plan_rows_test.cpp fits it again.
inline constexpr double kOverlap = 0.42;

// One call in the midst of a step.
//   product    launch + max(flops / (rate x share x fill), bytes / copy); fill as in time_model.h
//   attention  launch + flops / (rate x share) + bytes / what cuDNN makes of its operands
//   exchange   cluster.h
//   other      launch + bytes / (copy x share)
double op_seconds(const Cluster& cluster, const Spans& spans, std::string_view op, const Work& work);

enum class Bound : std::uint8_t { compute, memory, nvlink, network };
std::string_view name_of(Bound bound);

// Of a step and one GPU.
struct Step {
  double seconds = 0;
  double compute_s = 0;  // products and attention
  double memory_s = 0;   // everything else that computes
  double waited_s = 0;   // the computation waits for exchanges, or they run on its queue
  double exposed_s = 0;  // waited_s and what the hidden ones cost: waited_s + (1 - kOverlap) (wire_s - waited_s)
  double wire_s = 0;     // exchanges, hidden ones, too
  double flops = 0, fp8_flops = 0, memory_bytes = 0;
  Sent sent;
  Bound bound = Bound::compute;
  double tokens_per_s = 0;
  double model_flops_per_s = 0;  // as MFU counts them
};

// `seconds`: of the two queues beside each other, each op as long as op_seconds() says. `tokens` of this GPU in the step, and the
// operations that MFU counts for each.
Step step_of(const Cluster& cluster, const Spans& spans, std::span<const OpTime> compute, std::span<const OpTime> wire,
             double seconds, double tokens, double flops_per_token);

}  // namespace octet::plan
