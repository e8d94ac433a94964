#include "octet/nn/mlp.h"

#include <algorithm>
#include <utility>

#include "octet/kernels/swiglu/swiglu.h"
#include "octet/nn/sequence.h"

namespace octet::nn {

// The weights are made expert by expert, and up before down: the order of the parameters and of the scales.
Mlp::Weights Mlp::make_weights(const Options& o, const Recipe& recipe, parallel::ParameterStore& store,
                               recipes::ScaleState& scales) {
  const std::vector<std::int64_t> up_rows(o.gelu ? 1 : 2, o.ffn);
  require(o.up.size() == 1 || o.up.size() == up_rows.size(), o.name, ": ", o.up.size(), " linears before the activation");
  Weights weights;
  for (std::int64_t e = 0; e < std::max<std::int64_t>(1, o.experts); ++e) {
    const std::string name = o.experts > 0 ? concat(o.name, ".experts.", e) : o.name;
    const parallel::Expert expert = {o.experts > 0 ? e : 0, o.experts};
    weights.up.emplace_back(LinearWeight::Options{.parts = within(name, o.up),
                                                  .out = static_cast<std::int64_t>(up_rows.size()) * o.ffn,
                                                  .in = o.dim,
                                                  .cut = {.along = parallel::Cut::rows, .part_rows = up_rows},
                                                  .expert = expert,
                                                  .init_std = o.init_std,
                                                  .bias = o.bias},
                            recipe, store, scales);
    weights.down.emplace_back(LinearWeight::Options{.parts = within(name, {o.down}),
                                                    .out = o.dim,
                                                    .in = o.ffn,
                                                    .cut = {.along = parallel::Cut::columns},
                                                    .expert = expert,
                                                    .init_std = o.output_init_std,
                                                    .bias = o.bias},
                              recipe, store, scales);
  }
  return weights;
}

Mlp::Mlp(const Options& options, const Recipe& recipe, parallel::ParameterStore& store, recipes::ScaleState& scales)
    : Mlp(make_weights(options, recipe, store, scales), options.experts > 0 ? store.expert_place() : parallel::ExpertPlace{},
          options.gelu, recipe, scales) {}

Mlp::Mlp(Weights weights, const parallel::ExpertPlace& place, std::optional<kernels::Gelu> gelu, const Recipe& recipe,
         const recipes::ScaleState& scales)
    : up_(std::move(weights.up), place, recipe, scales), down_(std::move(weights.down), place, recipe, scales), gelu_(gelu) {}

std::vector<LinearWeight*> Mlp::linears() {
  std::vector<LinearWeight*> result;
  for (std::size_t e = 0; e < up_.weights().size(); ++e) {
    result.push_back(&up_.weights()[e]);
    result.push_back(&down_.weights()[e]);
  }
  return result;
}

Operand Mlp::activation(const Scope& scope, Reads reads, const MlpSaved& saved) const {
  const Operand a = down_.x().allocate(scope, saved.up.rows(), reads);
  if (gelu_) {
    kernels::gelu_forward(scope.stream, scope.scratch, {.kind = *gelu_, .x = saved.up, .y = a.values, .codes = a.epilogue});
  } else {
    kernels::swiglu_forward(scope.stream, scope.scratch, {.gate_up = saved.up, .y = a.values, .codes = a.epilogue});
  }
  return a;
}

void Mlp::forward(const Scope& scope, const Operand& h, const Tensor& residual, const Tensor& y, MlpSaved& saved) const {
  const Reads reads = forward_reads(scope);
  saved.up = allocate(scope.stash, scope.dtype, {up_.x().tokens(scope, h), up_.out()});
  saved.up_in = linear_forward(scope, up_, h, reads, {}, saved.up);
  const ArenaScope temporaries(scope.scratch);
  if (y) {
    saved.down_in = linear_forward(scope, down_, activation(scope, reads, saved), reads, residual, y);
  } else {
    rebuild_down_input(scope, saved);
  }
}

void Mlp::rebuild_down_input(const Scope& scope, MlpSaved& saved) const {
  if (!down_.x().is_kept()) return;
  saved.down_in = down_.complete_input(scope, activation(scope, Reads::wgrad, saved), Reads::wgrad);
}

void Mlp::rebuild(const Scope& scope, const Operand& h, MlpSaved& saved) const {
  if (keeps_input()) saved.up_in = up_.complete_input(scope, h, forward_reads(scope));
  rebuild_down_input(scope, saved);
}

void Mlp::backward(const Scope& scope, const Operand& gy, const MlpSaved& saved, const Tensor& gh) const {
  const ArenaScope temporaries(scope.scratch);
  const Tensor ga = allocate(scope.scratch, scope.dtype, {saved.up.rows(), gelu_ ? saved.up.cols() : saved.up.cols() / 2});
  linear_backward(scope, down_, gy, saved.down_in, ga);
  const Operand g = up_.g().gradient(scope, saved.up);
  if (gelu_) {
    kernels::gelu_backward(scope.stream, scope.scratch,
                           {.kind = *gelu_, .x = saved.up, .gy = ga, .gx = g.values, .codes = g.epilogue});
  } else {
    kernels::swiglu_backward(scope.stream, scope.scratch,
                             {.gate_up = saved.up, .gy = ga, .ggate_up = g.values, .codes = g.epilogue});
  }
  linear_backward(scope, up_, g, saved.up_in, gh);
}

}  // namespace octet::nn
