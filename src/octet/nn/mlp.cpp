#include "octet/nn/mlp.h"

#include "octet/kernels/swiglu/swiglu.h"

namespace octet::nn {

Mlp::Mlp(const Options& options, const Recipe& recipe, parallel::ParameterStore& store, recipes::ScaleState& scales)
    : options_(options),
      gate_up_({.parts = {options.name + ".gate_proj", options.name + ".up_proj"},
                .out = 2 * options.ffn,
                .in = options.dim,
                .init_std = options.init_std},
               recipe, store, scales),
      down_({.parts = {options.name + ".down_proj"}, .out = options.dim, .in = options.ffn, .init_std = options.output_init_std}, recipe,
            store, scales) {}

void Mlp::forward(const Scope& scope, const Tensor& h, const Tensor& residual, const Tensor& y, MlpSaved& saved) const {
  const std::int64_t tokens = h.rows();
  const bool keep = scope.checkpointing != Checkpointing::selective;
  saved.gate_up = allocate(scope.stash, scope.dtype, {tokens, 2 * options_.ffn});
  gate_up_.forward(scope, h, {}, saved.gate_up, keep ? &saved.gate_up_in : nullptr);
  Arena& arena = keep && down_.keeps_input() ? scope.stash : scope.scratch;
  const ArenaScope temporaries(scope.scratch);
  const Tensor a = allocate(arena, scope.dtype, {tokens, options_.ffn});
  kernels::swiglu_forward(scope.queue, {.gate_up = saved.gate_up, .y = a});
  if (y) {
    down_.forward(scope, a, residual, y, keep ? &saved.down_in : nullptr);
  } else {
    down_.rebuild(scope, scope.stash, a, saved.down_in);
  }
}

void Mlp::rebuild(const Scope& scope, const Tensor& h, MlpSaved& saved) const {
  gate_up_.rebuild(scope, scope.scratch, h, saved.gate_up_in);
  const Tensor a = allocate(scope.scratch, scope.dtype, {h.rows(), options_.ffn});
  kernels::swiglu_forward(scope.queue, {.gate_up = saved.gate_up, .y = a});
  down_.rebuild(scope, scope.scratch, a, saved.down_in);
}

void Mlp::backward(const Scope& scope, const Tensor& gy, const MlpSaved& saved, const Tensor& gh) const {
  const ArenaScope temporaries(scope.scratch);
  const Tensor ga = allocate(scope.scratch, scope.dtype, {gy.rows(), options_.ffn});
  down_.backward(scope, gy, saved.down_in, ga);
  kernels::swiglu_backward(scope.queue, {.gate_up = saved.gate_up, .gy = ga, .ggate_up = saved.gate_up});
  gate_up_.backward(scope, saved.gate_up, saved.gate_up_in, gh);
}

}  // namespace octet::nn
