#include "octet/models/decoder/branch.h"

#include "octet/kernels/elementwise/elementwise.h"

namespace octet::models {
namespace {

std::optional<nn::Norm> make_norm(const DecoderConfig& c, const std::string& block, const std::string& name,
                                  parallel::ParameterStore& store) {
  if (name.empty()) return std::nullopt;
  return nn::Norm(c.norm, concat(block, ".", name), c.dim, c.norm_epsilon, store);
}

}  // namespace

Branch::Branch(const DecoderConfig& config, const std::string& block, const BranchNorms& norms, parallel::ParameterStore& store)
    : before_(make_norm(config, block, norms.before, store)), after_(make_norm(config, block, norms.after, store)) {}

BranchSaved Branch::allocate(const nn::Scope& scope, const Shape& wide) const {
  BranchSaved saved;
  if (before_) saved.before = before_->allocate_statistics(scope, scope.stash, wide[0]);
  if (!after_) return saved;
  saved.after = after_->allocate_statistics(scope, scope.stash, wide[0]);
  saved.added = octet::allocate(scope.stash, scope.dtype, wide);
  return saved;
}

void Branch::add_normed(const nn::Scope& scope, const Tensor& x, const Tensor& y, const BranchSaved& saved) const {
  const ArenaScope temporaries(scope.scratch);
  const Tensor normed = y ? y : octet::allocate(scope.scratch, x.dtype, x.shape);
  after_->forward(scope, saved.added, {.values = normed}, saved.after);
  if (y) kernels::add(scope.stream, {.x = x, .y = y});
}

nn::Operand Branch::output_gradient(const nn::Scope& scope, const nn::Quantizer* g, const nn::Operand& gy,
                                    const BranchSaved& saved) const {
  if (!after_) return gy;
  const Tensor values = octet::allocate(scope.scratch, scope.dtype, gy.values.shape);
  scope.stream.zero(values.data, values.bytes());  // the norm adds to it
  const nn::Operand result = g ? g->gradient(scope, values) : nn::Operand{.values = values};
  after_->backward(scope, gy.values, saved.added, saved.after, result);
  return result;
}

void Branch::input_gradient(const nn::Scope& scope, const Tensor& gh, const Tensor& x, const BranchSaved& saved,
                            const nn::Operand& gx) const {
  if (before_) return before_->backward(scope, gh, x, saved.before, gx);
  kernels::add(scope.stream, {.x = gh, .y = gx.values});
  require(!gx.epilogue, "a gradient whose codes no norm writes");
}

}  // namespace octet::models
