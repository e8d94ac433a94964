// Cross-entropy of a chunk of tokens:  loss[t] = logsumexp(logits[t]) - logits[t, targets[t]], 0 for an ignored target.
// Inside in FP32 (F64 for F64).
#pragma once

#include "octet/device/device.h"
#include "octet/tensor/tensor.h"

namespace octet::kernels {

constexpr std::int32_t kIgnoredTarget = -100;

struct CrossEntropy {
  Tensor logits;   // [T, V] BF16, F32 or F64; with `gradient` in_place overwritten by the gradient of the sum of losses:
                   // softmax(logits) - onehot(target), a row of zeros for an ignored target
  Tensor targets;  // [T] I32, kIgnoredTarget or in [0, V)
  Tensor loss;     // [T] F32 (F64 for F64); overwritten
  enum class Gradient : std::uint8_t { none, in_place } gradient = Gradient::none;
};
void cross_entropy(Queue& queue, const CrossEntropy& op);

// total[0] += sum of losses (in F64, in a fixed order), total[1] += the number of targets not ignored.
struct LossSum {
  Tensor loss;     // [T]
  Tensor targets;  // [T] I32
  double* total = nullptr;  // [2] device
};
void loss_sum(Queue& queue, const LossSum& op);

}  // namespace octet::kernels
