#include "octet/nn/gelu_mlp.h"

namespace octet::nn {

GeluMlp::GeluMlp(const Options& options, const Recipe& recipe, parallel::ParameterStore& store, recipes::ScaleState& scales)
    : ffn_(options.ffn / store.place().size),
      gelu_(options.gelu),
      up_({.parts = {options.up},
           .out = options.ffn,
           .in = options.dim,
           .cut = {.along = parallel::Cut::rows},
           .init_std = options.init_std,
           .bias = true},
          recipe, store, scales),
      down_({.parts = {options.down},
             .out = options.dim,
             .in = options.ffn,
             .cut = {.along = parallel::Cut::columns},
             .init_std = options.output_init_std,
             .bias = true},
            recipe, store, scales) {}

LinearOperand GeluMlp::input(const Scope& scope, std::int64_t tokens, const GeluMlpSaved& saved) const {
  return up_.input(scope, tokens, scope.checkpointing == Checkpointing::selective ? nullptr : &saved.up_in);
}

void GeluMlp::forward(const Scope& scope, const LinearOperand& h, const Tensor& residual, const Tensor& y,
                      GeluMlpSaved& saved) const {
  const std::int64_t tokens = scope.tensor.size() * residual.rows();
  const bool keep = scope.checkpointing != Checkpointing::selective;
  saved.up = allocate(scope.stash, scope.dtype, {tokens, ffn_});
  up_.forward(scope, h, {}, saved.up, keep ? &saved.up_in : nullptr);
  const ArenaScope temporaries(scope.scratch);
  LinearSaved* const down_in = keep ? &saved.down_in : nullptr;
  const LinearOperand a = y ? down_.input(scope, tokens, down_in) : down_.rebuild_input(scope, scope.stash, tokens);
  kernels::gelu_forward(scope.queue, scope.scratch, {.kind = gelu_, .x = saved.up, .y = a.values, .codes = a.codes});
  if (y) {
    down_.forward(scope, a, residual, y, down_in);
  } else {
    down_.rebuild(scope, a, saved.down_in);
  }
}

void GeluMlp::rebuild(const Scope& scope, const LinearOperand& h, GeluMlpSaved& saved) const {
  up_.rebuild(scope, h, saved.up_in);
  const LinearOperand a = down_.rebuild_input(scope, scope.scratch, saved.up.rows());
  kernels::gelu_forward(scope.queue, scope.scratch, {.kind = gelu_, .x = saved.up, .y = a.values, .codes = a.codes});
  down_.rebuild(scope, a, saved.down_in);
}

void GeluMlp::backward(const Scope& scope, const LinearOperand& gy, const GeluMlpSaved& saved, const Tensor& gh) const {
  const ArenaScope temporaries(scope.scratch);
  const Tensor ga = allocate(scope.scratch, scope.dtype, {saved.up.rows(), ffn_});
  down_.backward(scope, gy, saved.down_in, ga);
  const LinearOperand g = up_.gradient(scope, saved.up);
  kernels::gelu_backward(scope.queue, scope.scratch, {.kind = gelu_, .x = saved.up, .gy = ga, .gx = g.values, .codes = g.codes});
  up_.backward(scope, g, saved.up_in, gh);
}

}  // namespace octet::nn
