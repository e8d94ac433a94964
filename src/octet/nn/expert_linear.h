// The same linear of all experts of a mixture (nn/linear.h). An expert has a weight and scales of its own, with the names that a
// model file gives them. Operands have the rows of all experts of this rank, scope.groups, and each of the three GEMMs is one
// grouped product (kernels/grouped_gemm), so that the number of launches does not depend on the number of experts.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "octet/kernels/grouped_gemm/grouped_gemm.h"
#include "octet/nn/linear.h"

namespace octet::nn {

class ExpertLinear {
 public:
  // `experts` are all, in their order. This rank holds `count` of them from `first` on.
  ExpertLinear(std::vector<std::unique_ptr<Linear>> experts, std::size_t first, std::size_t count, const Recipe& recipe,
               const recipes::ScaleState& scales);

  Linear& expert(std::size_t e) const { return *experts_[e]; }
  std::size_t expert_count() const { return experts_.size(); }
  std::int64_t out() const { return own(0).out(); }
  // Call it after experts have been given adapters. Throws Error{config} if only some of them have.
  void serve_adapters();
  bool is_adapted() const { return adapters_.has_value(); }
  // Return X and G completed, as their producers left them.
  Operand complete_input(const Scope& scope, const Operand& x, Reads reads) const;
  Operand complete_gradient(const Scope& scope, const Operand& g) const;
  // These quantize the operands of all experts of this rank together.
  const Quantizer& x() const { return x_; }
  const Quantizer& g() const { return g_; }

  // y = x Wᵀ of each expert; overwrites the rows of scope.groups.
  void fprop(const Scope& scope, const Operand& x, const Tensor& y) const;
  // gx = g W; overwrites the rows of scope.groups.
  void dgrad(const Scope& scope, const Operand& g, const Tensor& gx) const;
  // Overwrites the gradients of each weight, with gᵀ x, and of its adapter if scope.begins says so, otherwise adds to them.
  void wgrad(const Scope& scope, const Operand& g, const Operand& x) const;

 private:
  Linear& own(std::size_t i) const { return *experts_[first_ + i]; }
  bool is_fp8() const { return own(0).is_fp8(); }
  Quantizer::Options options_of(const Quantizer& (Linear::*operand)() const) const;
  // Shows scope.watch, if there is one, each expert's product in FP8.
  void watch(const Scope& scope, const char* which, const std::function<kernels::Gemm(const GroupPart&)>& product) const;
  kernels::Gemm product_of(const Scope& scope, const GroupPart& part, const kernels::GroupedGemmM& op, const Quantized& a) const;

  std::vector<std::unique_ptr<Linear>> experts_;
  std::size_t first_, count_;
  Quantizer x_, g_;
  std::optional<AdapterProducts> adapters_;
};

// What nn/sequence.h does for a linear of one weight. Experts have no bias, and whole rows, so nothing is exchanged; `residual`
// is absent.
Operand linear_forward(const Scope& scope, const ExpertLinear& linear, const Operand& x, Reads reads, const Tensor& residual,
                       const Tensor& y);
void linear_backward(const Scope& scope, const ExpertLinear& linear, const Operand& g, const Operand& x, const Tensor& gx);

}  // namespace octet::nn
