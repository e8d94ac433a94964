// Observes what the layers compute in a watched step, for health samples and dumps.
#pragma once

#include <string_view>
#include <vector>

#include "octet/kernels/gemm/gemm.h"
#include "octet/numerics/recipe.h"
#include "octet/tensor/quantized.h"
#include "octet/tensor/row_groups.h"
#include "octet/tensor/tensor.h"

namespace octet::nn {

struct Scope;

// Called in stream order. Tensors are valid during the call.
class Watch {
 public:
  virtual ~Watch() = default;
  // An operand of an FP8 product. `source` is the tensor that was quantized: BF16 values, or the weight's primary copy. A
  // weight of which this rank holds only a shard is not shown in a pass; train::Engine::observe_weights shows it. If the
  // backward pass makes an X again, it calls again, with scope.record = nothing.
  virtual void operand(const Scope& scope, std::string_view linear, Role role, const Tensor& source, const Quantized& q) = 0;
  // A GEMM of an FP8 linear, which has run. `which` is "y", "gx" or "gw". `gemm` has the same operands, no C, and a D in F32
  // without memory: the product without residual or accumulation. A watch that needs the values calls run_alone().
  virtual void product(const Scope& scope, std::string_view linear, std::string_view which, const kernels::Gemm& gemm) = 0;
  // `lse` [H, T] F32, or F64 on a device that computes in F64: the log-sum-exp of this rank's heads and tokens.
  virtual void attention(const Scope& scope, std::string_view layer, const Tensor& lse) = 0;
  // The weight [D] of a norm, in each pass that applies it. `name` is that of the norm.
  virtual void norm(const Scope&, std::string_view, const Tensor&) {}
  // Between rehearse(true) and rehearse(false), passes with scope.record = nothing are shown, so that the watch runs its
  // kernels once and CUDA loads them. The watch keeps nothing of these passes.
  virtual void rehearse(bool) {}
};

// Runs a watched GEMM again. Returns the product, in scope.scratch.
Tensor run_alone(const Scope& scope, const kernels::Gemm& gemm);

// Returns the groups of scope.groups that have rows, for a watch, which sees the operands of one expert after another. The host
// waits for the numbers of rows. The meta device assumes equal numbers. Without groups, returns one group of all rows.
std::vector<GroupExtent> watched_groups(const Scope& scope);
// Returns the codes of a group with contiguous scales, which lie in scope.scratch if they must be copied. Without groups,
// returns all codes.
Quantized watched_codes(const Scope& scope, const Quantized& q, const GroupExtent& part);

}  // namespace octet::nn
