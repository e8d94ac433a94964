// Predicts the time of an op on a GPU from its work.
//   product   launch + max(2 M N K / (rate x fill), bytes / copy); a grouped product has kGroupedShare of the rate
//             fill   = units / (S x ceil(units / S)) for S multiprocessors: the last wave fills only some of them
//             units  = tiles x pieces, tiles = ceil(M / 128) x ceil(N / 256)
//             pieces = floor(S / tiles), at least 1 and at most floor(K / 512): a product of few tiles is split along K
//   other     kernels x launch + bytes / copy
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "octet/plan/linear_run.h"

namespace octet::plan {

struct Machine {
  double (*flops)(
      std::string_view op);  // operations per second of large products, by the op's name in profiles; 0: memory bounds the op
  double copy_bytes_per_s = 0;  // bytes read and written per second by a large copy
  double host_bytes_per_s = 55e9;  // of a copy between page-locked host memory and the GPU, one way; measured on an H200
  int multiprocessors = 132;       // of an H100 or H200 SXM
  // Seconds for the start and end of a kernel and the gap before the next. This is an estimate. It matters only for small products, which
  // a GPU can measure.
  double launch_s = 4e-6;
};

// A grouped product reaches this share of the rate of a single one, measured in steps of Mixtral 8x7B and Qwen3 30B-A3B
// (docs/measurements/gpu-tests.md).
inline constexpr double kGroupedShare = 0.9;

// The fraction of the multiprocessors that a product [M, N, K] keeps busy.
double fill_of(const std::array<std::int64_t, 3>& shape, std::int64_t multiprocessors);

// The time of all calls of an op together. `kernels` is the number of kernels that a call starts if memory bounds the op.
double predicted_seconds(const Machine& machine, const OpTime& op, int kernels);

// The time of one linear in one micro-batch.
struct LinearTime {
  double products_s = 0;  // forward, dgrad and wgrad
  double others_s = 0;    // the ops that make the operands, and the weight's cast divided by the micro-batches of a step
};
// The time by the model above.
LinearTime predicted_time(const Machine& machine, const LinearOps& ops, const LinearKind& kind, const Recipe& recipe,
                          const LinearSetting& setting);
// The time from profiles that hold measured seconds.
LinearTime measured_time(const LinearOps& ops, const LinearKind& kind, const LinearSetting& setting);

}  // namespace octet::plan
