// Cross-entropy of a chunk of tokens:  loss[t] = logsumexp(logits[t]) - logits[t, targets[t]], or 0 for an ignored target.
// Computed in FP32 (F64 for F64).
#pragma once

#include "octet/device/device.h"
#include "octet/tensor/tensor.h"

namespace octet::kernels {

constexpr std::int32_t kIgnoredTarget = -100;

struct CrossEntropy {
  Tensor logits;   // [T, V] BF16, F32 or F64; overwritten if `gradient` is in_place by the gradient of the sum of losses:
                   // softmax(logits) - onehot(target), or a row of zeros for an ignored target
  Tensor targets;  // [T] I32, kIgnoredTarget or in [0, V)
  Tensor loss;     // [T] F32 (F64 for F64); overwritten
  enum class Gradient : std::uint8_t { none, in_place } gradient = Gradient::none;
};
void cross_entropy(Stream& stream, const CrossEntropy& op);

// Cross-entropy of logits whose columns are sharded over ranks (a tensor-parallel vocabulary). Each rank computes the statistics
// of its shard. The ranks gather all statistics in the order of the shards. Each rank then computes the loss, with the same bits
// on all ranks, and the gradient of its shard. With one shard, the CPU gives the same bits as cross_entropy.
struct SoftmaxStatistics {
  Tensor logits;   // [T, P]: columns [first, first + P) of the logits
  Tensor targets;  // [T] I32, indices into the whole vocabulary
  std::int64_t first = 0;
  Tensor statistics;  // [3, T] F32 (F64 for F64), overwritten: the largest logit, ignoring NaN; the sum of e^(x - largest), NaN
                      // if a logit is; the target's logit, or 0 if another shard holds it. 0 for ignored targets
};
void softmax_statistics(Stream& stream, const SoftmaxStatistics& op);

struct CrossEntropyOfPart {
  Tensor logits;   // as above; overwritten by the shard's columns of the gradient if `gradient` is in_place
  Tensor targets;  // [T] I32
  std::int64_t first = 0, vocabulary = 0;
  Tensor statistics;  // [3 n, T], gathered from all n shards
  Tensor loss;        // [T] F32 (F64 for F64); overwritten
  CrossEntropy::Gradient gradient = CrossEntropy::Gradient::none;
};
void cross_entropy_of_part(Stream& stream, const CrossEntropyOfPart& op);

// total[0] += sum of losses, in F64 and in a fixed order; total[1] += number of targets that are not ignored.
struct LossSum {
  Tensor loss;              // [T]
  Tensor targets;           // [T] I32
  double* total = nullptr;  // [2] device
};
void loss_sum(Stream& stream, const LossSum& op);

}  // namespace octet::kernels
