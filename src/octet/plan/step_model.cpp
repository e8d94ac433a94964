#include "octet/plan/step_model.h"

#include <algorithm>
#include <array>

#include "octet/kernels/grouped_gemm/grouped_gemm.h"

namespace octet::plan {
namespace {

// cuDNN's attention is slower on short sequences, so its time has a term for the operations and a term for the bytes of its
// operands. The byte rates are used for every Hopper GPU. They are fitted to measurements on an H200 in the skeleton of an 8B
// step (only its products and attention): forward 490 TFLOP/s and backward 403 TFLOP/s at 8192 tokens, forward 360 and backward
// 244 at 1024.
constexpr double kAttentionForwardBytesPerSecond = 2.9e12, kAttentionBackwardBytesPerSecond = 1.06e12;

// The fraction of its ceiling that an op reaches in an 8B step. Sources in docs/measurements/: most ops from "Where a token's
// time goes" in h200-one-gpu.md (RMSNorm backward after the last change there); BF16 products from the head there and the row
// 8b-bf16; products with scales by row or block from the skeleton in h200-ceilings.md. Products exceed their ceilings, because
// the ceilings are means that already include partly filled last waves.
struct Share {
  std::string_view op;
  double of_ceiling = 1;
};
constexpr double kOtherShare = 0.8;  // for ops that are not in the table
constexpr Share kShares[] = {
    {"gemm bf16", 1.06},
    {"gemm fp8 fast", 1.065},
    {"gemm fp8 precise", 1.14},
    {"gemm fp8 row fast", 1.09},
    {"gemm fp8 row precise", 1.09},
    {"gemm fp8 1x128 128x128", 1.12},
    {"gemm fp8 1x128 1x128", 1.0},
    {"gemm fp32", 0.35},  // products of a router, which memory bounds; measured in Mixtral's step: 0.27 and 0.48
    {"attention_forward", 0.83 * 620 / 490},      // of the burst rates 620 and 525, without the time of its operands
    {"attention_forward_fp8", 0.83 * 620 / 490},  // as in BF16; an H200 measured 0.97 of it
    {"attention_backward", 0.845 * 525 / 400},
    {"attention_backward_fp8", 0.94},  // steps of 8B on an H200: 468, 483 and 524 TFLOP/s
    {"swiglu_forward", 0.78},
    {"swiglu_backward", 0.665},
    {"rmsnorm_forward", 0.52},
    {"rmsnorm_backward", 0.55},
    {"rope", 0.63},
    {"quantize", 0.81},
    {"cross_entropy", 0.63},
    {"adamw", 0.85},
    {"sum_squares", 1.0},
};

Share share_of(std::string_view op) {
  if (op.ends_with(kernels::kGroupedSuffix)) {
    op.remove_suffix(kernels::kGroupedSuffix.size());
    return {op, kGroupedShare * share_of(op).of_ceiling};
  }
  const auto found = std::find_if(std::begin(kShares), std::end(kShares), [&](const Share& s) { return s.op == op; });
  return found == std::end(kShares) ? Share{op, kOtherShare} : *found;
}

bool is_product(std::string_view op) { return op.starts_with("gemm "); }
bool is_math(std::string_view op) { return is_product(op) || op.starts_with("attention_"); }

}  // namespace

double op_seconds(const Cluster& cluster, const Spans& spans, std::string_view op, const Work& work) {
  if (op == "wait for ranks") return 0;  // only a mark in profiles
  if (op == "fetch") return fetch_seconds(cluster.gpu, work.bytes);
  if (!work.group.empty()) return exchange_seconds(cluster.gpu, find_span(spans, work.group), op, work.bytes, work.joins);
  const Machine& machine = cluster.gpu.machine;
  if (op == "fetch states" || op == "offload states") return work.bytes / machine.host_bytes_per_s;
  const Share share = share_of(op);
  const double copy_s = work.bytes / machine.copy_bytes_per_s;
  if (is_product(op) && machine.flops(op) > 0) {
    const double rate = machine.flops(op) * share.of_ceiling * fill_of(work.shape, machine.multiprocessors);
    return machine.launch_s + std::max(work.flops / rate, copy_s);
  }
  if (is_math(op) && machine.flops(op) > 0) {
    const double operands = op.starts_with("attention_forward") ? kAttentionForwardBytesPerSecond : kAttentionBackwardBytesPerSecond;
    return machine.launch_s + work.flops / (machine.flops(op) * share.of_ceiling) + work.bytes / operands;
  }
  return machine.launch_s + copy_s / share.of_ceiling;
}

std::string_view name_of(Bound bound) {
  constexpr std::array<std::string_view, 4> kNames = {"compute", "memory", "NVLink", "network"};
  return kNames[static_cast<std::size_t>(bound)];
}

Step step_of(const Cluster& cluster, const Spans& spans, std::span<const OpTime> compute, std::span<const OpTime> params,
             double seconds, double tokens, double flops_per_token, double bubble_s, double copies_s) {
  Step step;
  double network_s = 0, fetch_s = 0;
  const auto send = [&](const OpTime& op) {
    const Span span = find_span(spans, op.work.group);
    const Sent sent = sent_of(span, op.op, op.work.bytes);
    step.sent.nvlink_bytes += sent.nvlink_bytes;
    step.sent.network_bytes += sent.network_bytes;
    step.wire_s += op.seconds;
    if (op.op == std::string_view("fetch")) fetch_s += op.seconds;
    if (network_decides(cluster.gpu, span, op.op, op.work.bytes)) network_s += op.seconds;
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
  for (const OpTime& op : params) {
    if (op.work.group.empty()) {
      step.flops += op.work.flops;
      step.memory_bytes += op.work.bytes;
    } else {
      send(op);
    }
  }
  step.waited_s = std::max(0.0, seconds - copies_s - step.compute_s - step.memory_s);
  // Copy engines take no multiprocessor from the computation.
  step.exposed_s = step.waited_s + (1 - kOverlap) * std::max(0.0, step.wire_s - fetch_s - step.waited_s);
  step.bubble_s = bubble_s;
  step.copies_s = copies_s;
  step.seconds = step.compute_s + step.memory_s + step.exposed_s + step.bubble_s + step.copies_s;
  const double on_network = step.wire_s > 0 ? step.exposed_s * network_s / step.wire_s : 0;
  const std::array<double, 4> shares = {step.compute_s, step.memory_s, step.exposed_s - on_network, on_network};
  step.bound = static_cast<Bound>(std::max_element(shares.begin(), shares.end()) - shares.begin());
  step.tokens_per_s = tokens / step.seconds;
  step.model_flops_per_s = flops_per_token * step.tokens_per_s;
  return step;
}

}  // namespace octet::plan
