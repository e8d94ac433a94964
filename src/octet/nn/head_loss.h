// Output head, logits = h Wᵀ, and cross-entropy, in chunks of tokens, so that the logits of a micro-batch never exist as a
// whole. A rank of the tensor axis (nn/sequence.h) computes the logits of a part of the vocabulary.
#pragma once

#include <string>

#include "octet/nn/linear.h"

namespace octet::nn {

// Returns the number of tokens in a chunk. It is large enough to fill a GPU, and a multiple of 128, so that chunks cut no scale
// tile. On t ranks of the tensor axis, a chunk has this many tokens of each rank's share, and each rank computes 1 / t of the
// logits of all of them.
std::int64_t head_chunk_tokens(DeviceKind device, std::int64_t vocab);

class HeadLoss {
 public:
  struct Options {
    std::string name = "lm_head";
    std::int64_t vocab = 0, dim = 0;
    double init_std = 0.02;
    parallel::Parameter* tied = nullptr;  // the embedding's weight
  };
  // The head computes in the recipe's precision if the recipe says so (head_fp8), otherwise in BF16; in FP32 for the fp32
  // recipe.
  HeadLoss(const Options& options, const Recipe& recipe, parallel::ParameterStore& store, recipes::ScaleState& scales);

  // h [T / t, D], targets [T] I32. total[0] += sum of token losses, total[1] += tokens that count (device). With gh [T / t, D]
  // (optional), gh is overwritten with the gradient of the *sum* of losses. The weight's gradient is then overwritten if
  // scope.overwrites says so, otherwise added to.
  void loss(const Scope& scope, const Tensor& h, const Tensor& targets, double* total, const Tensor& gh = {}) const;
  // logits [T, V] of h's dtype, overwritten; on one rank of the tensor axis.
  void logits(const Scope& scope, const Tensor& h, const Tensor& logits) const;

  Linear& head() { return head_; }

 private:
  Linear head_;
};

}  // namespace octet::nn
