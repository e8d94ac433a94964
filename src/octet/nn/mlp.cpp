#include "octet/nn/mlp.h"

#include "octet/kernels/swiglu/swiglu.h"
#include "octet/nn/sequence.h"

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

void Mlp::activate(const Scope& scope, const Tensor& x, const Operand& y) const {
  if (gelu_)
    return kernels::gelu_forward(scope.stream, scope.scratch, {.kind = *gelu_, .x = x, .y = y.values, .codes = y.epilogue});
  kernels::swiglu_forward(scope.stream, scope.scratch, {.gate_up = x, .y = y.values, .codes = y.epilogue});
}

Operand Mlp::activation(const Scope& scope, Arena& kept, Reads reads, MlpSaved& saved) const {
  Operand a = down_.x().allocate(scope, kept, saved.up.rows(), reads);
  activate(scope, saved.up, a);
  a = down_.x().complete(scope, a, kept, reads);
  if (reads != Reads::fprop) saved.down_in = for_wgrad(down_.x(), a);
  return a;
}

void Mlp::forward(const Scope& scope, const Operand& h, const Tensor& residual, const Tensor& y, MlpSaved& saved) const {
  const Reads reads = forward_reads(scope);
  {
    const ArenaScope temporaries(scope.scratch);
    const Operand x = up_.x().complete(scope, h, scope.stash, reads);
    saved.up = allocate(scope.stash, scope.dtype, {tokens_of(x), up_.weight().spec.shape[0]});
    up_.fprop(scope, x, {}, saved.up);
    up_.add_bias(scope, saved.up);
    if (reads != Reads::fprop) saved.up_in = for_wgrad(up_.x(), x);
  }
  const ArenaScope temporaries(scope.scratch);
  const Operand a = activation(scope, scope.stash, y ? reads : Reads::wgrad, saved);
  if (!y) return;
  const PartialSum sum(scope, residual, y);
  down_.fprop(scope, a, sum.c, sum.d);
  sum.finish(scope);
  down_.add_bias(scope, y);
}

void Mlp::rebuild(const Scope& scope, const Operand& h, MlpSaved& saved) const {
  saved.up_in = up_.x().complete(scope, h, scope.scratch, Reads::wgrad);
  activation(scope, scope.scratch, Reads::wgrad, saved);
}

void Mlp::backward(const Scope& scope, const Operand& gy, const MlpSaved& saved, const Tensor& gh) const {
  const ArenaScope temporaries(scope.scratch);
  const Tensor ga = allocate(scope.scratch, scope.dtype, {saved.up.rows(), ffn_});
  {
    const ArenaScope of_down(scope.scratch);
    down_.add_bias_gradient(scope, gy.values);
    const Operand g = down_.g().complete_gradient(scope, gy);
    down_.dgrad(scope, g, ga);
    down_.wgrad(scope, g, saved.down_in);
  }
  Operand g = up_.g().gradient(scope, saved.up);
  if (gelu_) {
    kernels::gelu_backward(scope.stream, scope.scratch,
                           {.kind = *gelu_, .x = saved.up, .gy = ga, .gx = g.values, .codes = g.epilogue});
  } else {
    kernels::swiglu_backward(scope.stream, scope.scratch,
                             {.gate_up = saved.up, .gy = ga, .ggate_up = g.values, .codes = g.epilogue});
  }
  up_.add_bias_gradient(scope, g.values);
  g = up_.g().complete_gradient(scope, g);
  {
    const ArenaScope of_sum(scope.scratch);
    const PartialSum sum(scope, {}, gh);
    up_.dgrad(scope, g, sum.d);
    sum.finish(scope);
  }
  up_.wgrad(scope, g, saved.up_in);
}

}  // namespace octet::nn
