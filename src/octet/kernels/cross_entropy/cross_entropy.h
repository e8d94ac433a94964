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

// The same of logits whose columns lie in parts, each on a rank of its own. Every rank finds the statistics of its part, all
// statistics are gathered in the order of the parts, and then each rank has the loss, all of them the same bits, and the gradient
// of its part. A part that is the whole vocabulary gives the bits of cross_entropy on the CPU.
struct SoftmaxStatistics {
  Tensor logits;   // [T, P]: columns [first, first + P) of the logits
  Tensor targets;  // [T] I32, of the whole vocabulary
  std::int64_t first = 0;
  Tensor statistics;  // [3, T] F32 (F64 for F64), overwritten: the largest logit; the sum of e^(x - largest), which NaN is in;
                      // the target's logit, 0 where another part holds it. Rows of an ignored target are 0
};
void softmax_statistics(Queue& queue, const SoftmaxStatistics& op);

struct CrossEntropyOfPart {
  Tensor logits;   // as above; with `gradient` in_place overwritten by the gradient's columns
  Tensor targets;  // [T] I32
  std::int64_t first = 0, vocabulary = 0;
  Tensor statistics;  // [3 n, T] of all n parts
  Tensor loss;        // [T] F32 (F64 for F64); overwritten
  CrossEntropy::Gradient gradient = CrossEntropy::Gradient::none;
};
void cross_entropy_of_part(Queue& queue, const CrossEntropyOfPart& op);

// total[0] += sum of losses (in F64, in a fixed order), total[1] += the number of targets not ignored.
struct LossSum {
  Tensor loss;     // [T]
  Tensor targets;  // [T] I32
  double* total = nullptr;  // [2] device
};
void loss_sum(Queue& queue, const LossSum& op);

}  // namespace octet::kernels
