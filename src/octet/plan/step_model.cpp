#include "octet/plan/step_model.h"

#include <algorithm>
#include <array>

#include "octet/kernels/quantize/quantize.h"

namespace octet::plan {
namespace {

// Of what hides behind the computation so much costs nothing; the rest is what NCCL's kernels take of multiprocessors and memory.
// An assumption, until rows of several GPUs are measured.
constexpr double kOverlap = 0.9;

// Sources are read again, in a kernel of its own. Measured: docs/performance.md, shares of ops alone, delayed over current
// scales.
constexpr double kSecondPass = 1.6;

// The share of its ceiling that an op reaches in a step of 8B in fp8_delayed (docs/performance.md, "Where a token's time goes",
// 2026-11-21).
struct Share {
  std::string_view op;
  double math = 1, memory = 1;
  bool writes_codes = false;
};
constexpr double kOtherShare = 0.8;  // of ops without a line
constexpr Share kShares[] = {
    {"gemm bf16", 1.0},
    {"gemm fp8 fast", 1.0},
    {"gemm fp8 precise", 1.0},
    {"attention_forward", 0.83, 0.68},
    {"attention_backward", 0.845, 0.25},
    {"swiglu_forward", 1, 0.78, true},
    {"swiglu_backward", 1, 0.665, true},
    {"rmsnorm_forward", 1, 0.52, true},
    {"rmsnorm_backward", 1, 0.64, true},
    {"rope", 1, 0.63, true},
    {"quantize", 1, 0.81, true},
    {"cross_entropy", 1, 0.63},
    {"adamw", 1, 0.85},
    {"sum_squares", 1, 1.0},
};

Share share_of(std::string_view op) {
  const auto found = std::find_if(std::begin(kShares), std::end(kShares), [&](const Share& s) { return s.op == op; });
  return found == std::end(kShares) ? Share{op, 1, kOtherShare} : *found;
}

bool is_product(std::string_view op) { return op.starts_with("gemm "); }
bool is_math(std::string_view op) { return is_product(op) || op.starts_with("attention_"); }

}  // namespace

Casts casts_of(const Recipe& recipe) {
  return recipe.is_fp8() && kernels::needs_amax_first(recipe.x) ? Casts::two_passes : Casts::one_pass;
}

double op_seconds(const Cluster& cluster, const Spans& spans, Casts casts, std::string_view op, const Work& work) {
  if (!work.group.empty()) return exchange_seconds(cluster.gpu, find_span(spans, work.group), work.bytes, work.joins);
  const Machine& machine = cluster.gpu.machine;
  const Share share = share_of(op);
  const double memory_s = work.bytes / machine.copy_bytes_per_s;
  if (is_product(op)) {
    const double rate = machine.flops(op) * share.math * fill_of(work.shape, machine.multiprocessors);
    return machine.launch_s + std::max(work.flops / rate, memory_s);
  }
  if (is_math(op)) return machine.launch_s + work.flops / (machine.flops(op) * share.math) + memory_s / share.memory;
  const bool twice = casts == Casts::two_passes && share.writes_codes;
  return (twice ? 2 : 1) * machine.launch_s + (twice ? kSecondPass : 1) * memory_s / share.memory;
}

std::string_view name_of(Bound bound) {
  constexpr std::array<std::string_view, 4> kNames = {"compute", "memory", "NVLink", "network"};
  return kNames[static_cast<std::size_t>(bound)];
}

Step step_of(const Cluster& cluster, const Spans& spans, std::span<const OpTime> compute, std::span<const OpTime> wire,
             double seconds, double tokens, double flops_per_token) {
  Step step;
  double network_s = 0;
  const auto send = [&](const OpTime& op) {
    const Span span = find_span(spans, op.work.group);
    const Sent sent = sent_of(span, op.work.bytes);
    step.sent.nvlink_bytes += sent.nvlink_bytes;
    step.sent.network_bytes += sent.network_bytes;
    step.wire_s += op.seconds;
    if (network_decides(cluster.gpu, span, op.work.bytes)) network_s += op.seconds;
  };
  for (const OpTime& op : compute) {
    if (!op.work.group.empty()) {
      send(op);
      continue;
    }
    (is_math(op.op) ? step.compute_s : step.memory_s) += op.seconds;
    step.flops += op.work.flops;
    step.fp8_flops += op.work.fp8_flops;
    step.memory_bytes += op.work.bytes;
  }
  for (const OpTime& op : wire) {
    if (op.work.group.empty()) {
      step.flops += op.work.flops;
      step.memory_bytes += op.work.bytes;
    } else {
      send(op);
    }
  }
  const double waited = std::max(0.0, seconds - step.compute_s - step.memory_s);
  const double hidden = std::max(0.0, step.wire_s - waited);
  step.exposed_s = waited + (1 - kOverlap) * hidden;
  step.seconds = step.compute_s + step.memory_s + step.exposed_s;
  const double on_network = step.wire_s > 0 ? step.exposed_s * network_s / step.wire_s : 0;
  const std::array<double, 4> shares = {step.compute_s, step.memory_s, step.exposed_s - on_network, on_network};
  step.bound = static_cast<Bound>(std::max_element(shares.begin(), shares.end()) - shares.begin());
  step.tokens_per_s = tokens / step.seconds;
  step.model_flops_per_s = flops_per_token * step.tokens_per_s;
  return step;
}

}  // namespace octet::plan
