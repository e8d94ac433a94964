// Sees what the layers of a watched step compute: health samples and dumps.
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
  // An operand of an FP8 product. `source` is what was quantized: BF16 values, or the weight's primary copy. A weight of which
  // this rank holds a shard is not seen in a pass; train::Engine::observe_weights shows it. The backward pass calls again, with
  // scope.record = nothing, for an X that it has made again.
  virtual void operand(const Scope& scope, std::string_view linear, Role role, const Tensor& source, const Quantized& q) = 0;
  // A GEMM of an FP8 linear, which has run. `which` is "y", "gx" or "gw". `gemm` has the same operands, no C, and a D without
  // memory, in F32: the product without residual or accumulation. A watch that wants it calls run_alone().
  virtual void product(const Scope& scope, std::string_view linear, std::string_view which, const kernels::Gemm& gemm) = 0;
  // `lse` [H, T] F32, or F64 on a device that computes in F64: the log-sum-exp of this rank's heads and tokens.
  virtual void attention(const Scope& scope, std::string_view layer, const Tensor& lse) = 0;
  // The weight [D] of a norm, in each pass that applies it. `name` is that of the norm.
  virtual void norm(const Scope&, std::string_view, const Tensor&) {}
  // Between rehearse(true) and rehearse(false) it is shown passes with scope.record = nothing, so that it runs, and CUDA loads,
  // its kernels. It keeps nothing of them.
  virtual void rehearse(bool) {}
};

// Runs a watched GEMM once more. Returns the product, in scope.scratch.
Tensor run_alone(const Scope& scope, const kernels::Gemm& gemm);

// The groups of scope.groups that have rows, for a watch, which sees the operands of one expert after another. The host waits for
// the numbers of rows. The meta device takes all to be equal. Without groups: one, which stands for all rows.
std::vector<GroupPart> watched_groups(const Scope& scope);
// The codes of a group, with scales that are contiguous, in scope.scratch if they must be copied. Without groups: all of them.
Quantized watched_codes(const Scope& scope, const Quantized& q, const GroupPart& part);

}  // namespace octet::nn
