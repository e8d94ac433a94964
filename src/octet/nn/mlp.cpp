#include "octet/nn/mlp.h"

#include "octet/kernels/swiglu/swiglu.h"

namespace octet::nn {

Mlp::Mlp(const Options& options, const Recipe& recipe, parallel::ParameterStore& store, recipes::ScaleState& scales)
    : ffn_(options.ffn / store.place().size),
      gate_up_({.parts = {options.name + "." + options.gate, options.name + "." + options.up},
                .out = 2 * options.ffn,
                .in = options.dim,
                .cut = {.along = parallel::Cut::rows, .part_rows = {options.ffn, options.ffn}},
                .expert = options.expert,
                .init_std = options.init_std},
               recipe, store, scales),
      down_({.parts = {options.name + "." + options.down},
             .out = options.dim,
             .in = options.ffn,
             .cut = {.along = parallel::Cut::columns},
             .expert = options.expert,
             .init_std = options.output_init_std},
            recipe, store, scales) {}

LinearOperand Mlp::input(const Scope& scope, std::int64_t tokens, const MlpSaved& saved) const {
  return gate_up_.input(scope, tokens, scope.checkpointing == Checkpointing::selective ? nullptr : &saved.gate_up_in);
}

void Mlp::forward(const Scope& scope, const LinearOperand& h, const Tensor& residual, const Tensor& y, MlpSaved& saved) const {
  const bool keep = scope.checkpointing != Checkpointing::selective;
  saved.gate_up = allocate(scope.stash, scope.dtype, {scope.tensor.size() * residual.rows(), 2 * ffn_});
  gate_up_.forward(scope, h, {}, saved.gate_up, keep ? &saved.gate_up_in : nullptr);
  finish_forward(scope, residual, y, saved);
}

void Mlp::forward(const Scope& scope, const Tensor& h, const Tensor& y, MlpSaved& saved) const {
  const bool keep = scope.checkpointing != Checkpointing::selective;
  saved.gate_up = allocate(scope.stash, scope.dtype, {scope.tensor.size() * h.rows(), 2 * ffn_});
  gate_up_.forward(scope, h, {}, saved.gate_up, keep ? &saved.gate_up_in : nullptr);
  finish_forward(scope, {}, y, saved);
}

void Mlp::finish_forward(const Scope& scope, const Tensor& residual, const Tensor& y, MlpSaved& saved) const {
  const std::int64_t tokens = saved.gate_up.rows();
  const ArenaScope temporaries(scope.scratch);
  LinearSaved* const down_in = scope.checkpointing != Checkpointing::selective ? &saved.down_in : nullptr;
  const LinearOperand a = y ? down_.input(scope, tokens, down_in) : down_.rebuild_input(scope, scope.stash, tokens);
  kernels::swiglu_forward(scope.queue, scope.scratch, {.gate_up = saved.gate_up, .y = a.values, .codes = a.codes});
  if (y) {
    down_.forward(scope, a, residual, y, down_in);
  } else {
    down_.rebuild(scope, a, saved.down_in);
  }
}

void Mlp::rebuild(const Scope& scope, const LinearOperand& h, MlpSaved& saved) const {
  gate_up_.rebuild(scope, h, saved.gate_up_in);
  finish_rebuild(scope, saved);
}

void Mlp::rebuild(const Scope& scope, const Tensor& h, MlpSaved& saved) const {
  gate_up_.rebuild(scope, scope.scratch, h, saved.gate_up_in);
  finish_rebuild(scope, saved);
}

void Mlp::finish_rebuild(const Scope& scope, MlpSaved& saved) const {
  const LinearOperand a = down_.rebuild_input(scope, scope.scratch, saved.gate_up.rows());
  kernels::swiglu_forward(scope.queue, scope.scratch, {.gate_up = saved.gate_up, .y = a.values, .codes = a.codes});
  down_.rebuild(scope, a, saved.down_in);
}

void Mlp::backward(const Scope& scope, const LinearOperand& gy, const MlpSaved& saved, const Tensor& gh) const {
  const ArenaScope temporaries(scope.scratch);
  const Tensor ga = allocate(scope.scratch, scope.dtype, {saved.gate_up.rows(), ffn_});
  down_.backward(scope, gy, saved.down_in, ga);
  finish_backward(scope, ga, saved, gh);
}

void Mlp::backward(const Scope& scope, const Tensor& gy, const MlpSaved& saved, const Tensor& gh) const {
  const ArenaScope temporaries(scope.scratch);
  const Tensor ga = allocate(scope.scratch, scope.dtype, {saved.gate_up.rows(), ffn_});
  down_.backward(scope, gy, saved.down_in, ga);
  finish_backward(scope, ga, saved, gh);
}

void Mlp::finish_backward(const Scope& scope, const Tensor& ga, const MlpSaved& saved, const Tensor& gh) const {
  const LinearOperand g = gate_up_.gradient(scope, saved.gate_up);
  kernels::swiglu_backward(scope.queue, scope.scratch,
                           {.gate_up = saved.gate_up, .gy = ga, .ggate_up = g.values, .codes = g.codes});
  gate_up_.backward(scope, g, saved.gate_up_in, gh);
}

}  // namespace octet::nn
