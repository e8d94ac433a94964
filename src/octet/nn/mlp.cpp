#include "octet/nn/mlp.h"

#include "octet/kernels/swiglu/swiglu.h"
#include "octet/nn/expert_linear.h"
#include "octet/nn/sequence.h"

namespace octet::nn {

Linear::Options up_options(const MlpOptions& options) {
  require(options.up.size() == (options.gelu ? 1 : 2), options.name, ": ", options.up.size(), " linears before the activation");
  return {.parts = within(options.name, options.up),
          .out = static_cast<std::int64_t>(options.up.size()) * options.ffn,
          .in = options.dim,
          .cut = {.along = parallel::Cut::rows, .part_rows = std::vector<std::int64_t>(options.up.size(), options.ffn)},
          .expert = options.expert,
          .init_std = options.init_std,
          .bias = options.bias};
}

Linear::Options down_options(const MlpOptions& options) {
  return {.parts = within(options.name, {options.down}),
          .out = options.dim,
          .in = options.ffn,
          .cut = {.along = parallel::Cut::columns},
          .expert = options.expert,
          .init_std = options.output_init_std,
          .bias = options.bias};
}

template <class L>
Operand FeedForward<L>::activation(const Scope& scope, Reads reads, const MlpSaved& saved) const {
  const Operand a = down_.x().allocate(scope, saved.up.rows(), reads);
  if (gelu_) {
    kernels::gelu_forward(scope.stream, scope.scratch, {.kind = *gelu_, .x = saved.up, .y = a.values, .codes = a.epilogue});
  } else {
    kernels::swiglu_forward(scope.stream, scope.scratch, {.gate_up = saved.up, .y = a.values, .codes = a.epilogue});
  }
  return a;
}

template <class L>
void FeedForward<L>::forward(const Scope& scope, const Operand& h, const Tensor& residual, const Tensor& y,
                             MlpSaved& saved) const {
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

template <class L>
void FeedForward<L>::rebuild_down_input(const Scope& scope, MlpSaved& saved) const {
  if (!down_.x().is_kept()) return;
  saved.down_in = down_.complete_input(scope, activation(scope, Reads::wgrad, saved), Reads::wgrad);
}

template <class L>
void FeedForward<L>::rebuild(const Scope& scope, const Operand& h, MlpSaved& saved) const {
  if (keeps_input()) saved.up_in = up_.complete_input(scope, h, forward_reads(scope));
  rebuild_down_input(scope, saved);
}

template <class L>
void FeedForward<L>::backward(const Scope& scope, const Operand& gy, const MlpSaved& saved, const Tensor& gh) const {
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

template class FeedForward<Linear>;
template class FeedForward<ExpertLinear>;

}  // namespace octet::nn
