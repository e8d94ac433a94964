#include "octet/nn/mlp.h"

#include "octet/kernels/swiglu/swiglu.h"

namespace octet::nn {

Mlp::Mlp(const Options& options, const Recipe& recipe, parallel::ParameterStore& store, recipes::ScaleState& scales)
    : gelu_(options.gelu),
      ffn_(options.ffn / store.place().size),
      up_({.parts = within(options.name, options.up),
           .out = static_cast<std::int64_t>(options.up.size()) * options.ffn,
           .in = options.dim,
           .cut = {.along = parallel::Cut::rows, .part_rows = std::vector<std::int64_t>(options.up.size(), options.ffn)},
           .expert = options.expert,
           .init_std = options.init_std,
           .bias = options.bias},
          recipe, store, scales),
      down_({.parts = within(options.name, {options.down}),
             .out = options.dim,
             .in = options.ffn,
             .cut = {.along = parallel::Cut::columns},
             .expert = options.expert,
             .init_std = options.output_init_std,
             .bias = options.bias},
            recipe, store, scales) {
  require(options.up.size() == (gelu_ ? 1 : 2), options.name, ": ", options.up.size(), " linears before the activation");
}

void Mlp::activate(const Scope& scope, const Tensor& x, const LinearOperand& y) const {
  if (gelu_) return kernels::gelu_forward(scope.stream, scope.scratch, {.kind = *gelu_, .x = x, .y = y.values, .codes = y.codes});
  kernels::swiglu_forward(scope.stream, scope.scratch, {.gate_up = x, .y = y.values, .codes = y.codes});
}

LinearOperand Mlp::input(const Scope& scope, std::int64_t tokens, const MlpSaved& saved) const {
  return up_.input(scope, tokens, scope.checkpointing == Checkpointing::selective ? nullptr : &saved.up_in);
}

void Mlp::forward(const Scope& scope, const LinearOperand& h, const Tensor& residual, const Tensor& y, MlpSaved& saved) const {
  const bool keep = scope.checkpointing != Checkpointing::selective;
  saved.up = allocate(scope.stash, scope.dtype, {scope.tensor.size() * residual.rows(), up_.weight().spec.shape[0]});
  up_.forward(scope, h, {}, saved.up, keep ? &saved.up_in : nullptr);
  finish_forward(scope, residual, y, saved);
}

void Mlp::forward(const Scope& scope, const Tensor& h, const Tensor& y, MlpSaved& saved) const {
  const bool keep = scope.checkpointing != Checkpointing::selective;
  saved.up = allocate(scope.stash, scope.dtype, {scope.tensor.size() * h.rows(), up_.weight().spec.shape[0]});
  up_.forward(scope, h, {}, saved.up, keep ? &saved.up_in : nullptr);
  finish_forward(scope, {}, y, saved);
}

void Mlp::finish_forward(const Scope& scope, const Tensor& residual, const Tensor& y, MlpSaved& saved) const {
  const std::int64_t tokens = saved.up.rows();
  const ArenaScope temporaries(scope.scratch);
  LinearSaved* const down_in = scope.checkpointing != Checkpointing::selective ? &saved.down_in : nullptr;
  const LinearOperand a = y ? down_.input(scope, tokens, down_in) : down_.rebuild_input(scope, scope.stash, tokens);
  activate(scope, saved.up, a);
  if (y) {
    down_.forward(scope, a, residual, y, down_in);
  } else {
    down_.rebuild(scope, a, saved.down_in);
  }
}

void Mlp::rebuild(const Scope& scope, const LinearOperand& h, MlpSaved& saved) const {
  up_.rebuild(scope, h, saved.up_in);
  finish_rebuild(scope, saved);
}

void Mlp::rebuild(const Scope& scope, const Tensor& h, MlpSaved& saved) const {
  up_.rebuild(scope, scope.scratch, h, saved.up_in);
  finish_rebuild(scope, saved);
}

void Mlp::finish_rebuild(const Scope& scope, MlpSaved& saved) const {
  const LinearOperand a = down_.rebuild_input(scope, scope.scratch, saved.up.rows());
  activate(scope, saved.up, a);
  down_.rebuild(scope, a, saved.down_in);
}

void Mlp::backward(const Scope& scope, const LinearOperand& gy, const MlpSaved& saved, const Tensor& gh) const {
  const ArenaScope temporaries(scope.scratch);
  const Tensor ga = allocate(scope.scratch, scope.dtype, {saved.up.rows(), ffn_});
  down_.backward(scope, gy, saved.down_in, ga);
  finish_backward(scope, ga, saved, gh);
}

void Mlp::backward(const Scope& scope, const Tensor& gy, const MlpSaved& saved, const Tensor& gh) const {
  const ArenaScope temporaries(scope.scratch);
  const Tensor ga = allocate(scope.scratch, scope.dtype, {saved.up.rows(), ffn_});
  down_.backward(scope, gy, saved.down_in, ga);
  finish_backward(scope, ga, saved, gh);
}

void Mlp::finish_backward(const Scope& scope, const Tensor& ga, const MlpSaved& saved, const Tensor& gh) const {
  const LinearOperand g = up_.gradient(scope, saved.up);
  if (gelu_) {
    kernels::gelu_backward(scope.stream, scope.scratch,
                           {.kind = *gelu_, .x = saved.up, .gy = ga, .gx = g.values, .codes = g.codes});
  } else {
    kernels::swiglu_backward(scope.stream, scope.scratch,
                             {.gate_up = saved.up, .gy = ga, .ggate_up = g.values, .codes = g.codes});
  }
  up_.backward(scope, g, saved.up_in, gh);
}

}  // namespace octet::nn
