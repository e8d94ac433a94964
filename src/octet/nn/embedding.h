// Token embedding (kernels/embedding):
//   forward   x[t] = W[tokens[t]]
//   backward  gW[tokens[t]] += gx[t]
// A rank of the tensor axis holds the rows of W for a part of the vocabulary.
#pragma once

#include <string>

#include "octet/nn/scope.h"
#include "octet/parallel/parameter.h"

namespace octet::nn {

class Embedding {
 public:
  Embedding(const std::string& name, std::int64_t vocab, std::int64_t dim, double init_std, parallel::ParameterStore& store);

  parallel::Parameter& weight() const { return *weight_; }
  // tokens [T] I32; x [T / t, D], this rank's share of them, is overwritten.
  void forward(const Scope& scope, const Tensor& tokens, const Tensor& x) const;
  // Adds to the weight's gradient, unless the weight is frozen. gx [T / t, D].
  void backward(const Scope& scope, const Tensor& tokens, const Tensor& gx) const;

 private:
  std::int64_t vocab_;
  parallel::Parameter* weight_;
  std::int64_t first_;  // the first token of this rank's part
};

// Learned positions (Vaswani et al., 2017): the vector of a token's position in its sequence is added to its embedding.
class PositionEmbedding {
 public:
  PositionEmbedding(const std::string& name, std::int64_t positions, std::int64_t dim, double init_std,
                    parallel::ParameterStore& store);

  // Adds to x [T / t, D], this rank's share of the tokens of scope.positions.
  void forward(const Scope& scope, const Tensor& x) const;
  // Adds to the weight's gradient, unless the weight is frozen. gx [T / t, D].
  void backward(const Scope& scope, const Tensor& gx) const;

 private:
  std::int64_t positions_;
  parallel::Parameter* weight_;
};

}  // namespace octet::nn
