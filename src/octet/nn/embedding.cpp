#include "octet/nn/embedding.h"

#include "octet/kernels/elementwise/elementwise.h"
#include "octet/kernels/embedding/embedding.h"
#include "octet/nn/sequence.h"

namespace octet::nn {

Embedding::Embedding(const std::string& name, std::int64_t vocab, std::int64_t dim, double init_std,
                     parallel::ParameterStore& store)
    : vocab_(vocab),
      weight_(&store.add(
          {.name = name + ".weight", .shape = {vocab, dim}, .cut = {.along = parallel::Cut::rows}, .init_std = init_std})),
      first_(store.place().rank * weight_->spec.shape[0]) {}

void Embedding::forward(const Scope& scope, const Tensor& tokens, const Tensor& x) const {
  const ArenaScope temporaries(scope.scratch);
  PartialSum sum(scope, {}, x);
  kernels::embedding_forward(scope.stream,
                             {.tokens = tokens, .table = weight_->value, .y = sum.d, .first = first_, .vocabulary = vocab_});
  sum.finish(scope);
}

void Embedding::backward(const Scope& scope, const Tensor& tokens, const Tensor& gx) const {
  if (weight_->spec.frozen) return;
  const ArenaScope temporaries(scope.scratch);
  const Tensor g = gather_tokens(scope, scope.scratch, gx);
  kernels::embedding_backward(scope.stream, scope.scratch,
                              {.tokens = tokens, .gy = g, .gtable = weight_->grad, .first = first_, .vocabulary = vocab_});
}

PositionEmbedding::PositionEmbedding(const std::string& name, std::int64_t positions, std::int64_t dim, double init_std,
                                     parallel::ParameterStore& store)
    : positions_(positions), weight_(&store.add({.name = name + ".weight", .shape = {positions, dim}, .init_std = init_std})) {}

void PositionEmbedding::forward(const Scope& scope, const Tensor& x) const {
  const ArenaScope temporaries(scope.scratch);
  const Tensor vectors = allocate(scope.scratch, x.dtype, x.shape);
  kernels::embedding_forward(
      scope.stream,
      {.tokens = own_share(scope, scope.positions), .table = weight_->value, .y = vectors, .first = 0, .vocabulary = positions_});
  kernels::add(scope.stream, {.x = vectors, .y = x});
}

void PositionEmbedding::backward(const Scope& scope, const Tensor& gx) const {
  if (weight_->spec.frozen) return;
  kernels::embedding_backward(
      scope.stream, scope.scratch,
      {.tokens = own_share(scope, scope.positions), .gy = gx, .gtable = weight_->grad, .first = 0, .vocabulary = positions_});
}

}  // namespace octet::nn
