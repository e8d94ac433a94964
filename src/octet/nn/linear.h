// A linear layer, Y = X Wᵀ (+ b), in the precision its recipe says: the only layer that interprets a recipe.
//   fprop  Y[T, out]  = X[T, in]  · W[out, in]ᵀ (+ residual)
//   dgrad  gX[T, in]  = G[T, out] · W[out, in]
//   wgrad  gW[out, in] += Gᵀ[out, T] · X[T, in],  gb[out] += sum over tokens of G
// In FP8 the operands are codes, row-wise for the product that sums over columns and transposed for the one that sums over
// tokens. W is quantised by parallel::ParameterStore::refresh. X and G are quantised by the op that makes them (a norm, SwiGLU,
// ...) where nobody reads their values, else here. Of X only the transposed codes are kept for backward, and those not where a
// caller keeps its values and has them made again (attention.h). A bias is added to Y as it is stored, and its gradient is summed
// of G's values.
//
// On the t ranks of the tensor axis a linear is cut by rows, its X and gX being shares of the tokens [T / t, in] and its Y and G
// some columns of all [T, out / t], or by columns, the other way round. What is shared out is gathered before it is multiplied,
// and its codes and scales are those of all tokens: with a scale per tensor, which all ranks know, each casts its share and the
// codes are gathered; finer tiles stand along the tokens in one of the two versions, so values are gathered and then quantised.
// Partial sums of products are scattered (tokens.h). A bias is cut with the rows; beside a cut by columns each rank adds all of
// it to its share of the tokens.
#pragma once

#include <string>
#include <vector>

#include "octet/kernels/quantize/quantize.h"
#include "octet/nn/scope.h"
#include "octet/parallel/parameter.h"
#include "octet/recipes/scaler.h"

namespace octet::nn {

// What backward needs of X: one of the two.
struct LinearSaved {
  Tensor x;     // [T, in] itself, where wgrad multiplies BF16 or FP32: the caller keeps it alive
  Quantized q;  // columnwise and columnwise_scale_inv, in the stash or, where backward makes them, in the scratch
};

// X or G of a linear, given out before the op that makes it runs. That op fills `values`, or writes `codes` in their place.
struct LinearOperand {
  Tensor values;     // [T, cols]; absent, or working memory of its producer, when `codes` are wanted
  Quantized q = {};  // FP8: what the products read
  kernels::QuantizeEpilogue codes =
      {};  // for the producer, of its tokens; without parts when the linear itself quantises the values
};

// Returns "MODULE.PART" for each part.
std::vector<std::string> within(const std::string& module, std::vector<std::string> parts);

class Linear {
 public:
  // Registers the weight [out, in] in `store` and the delayed scales in `scales`. `parts` are the Hugging Face module names of
  // the linears fused in this one, in the order of their rows.
  struct Options {
    std::vector<std::string> parts;
    std::int64_t out = 0, in = 0;
    parallel::CutRule cut = {};    // of the weight on the tensor axis
    parallel::Expert expert = {};  // whose linear it is; on ranks that do not hold the expert it is a name and never runs
    double init_std = 0.02;
    bool bias = false;                             // starts at zero
    parallel::Parameter* shared_weight = nullptr;  // a tied head reads the embedding's
  };
  // Computes as the recipe does, or in BF16 where the recipe's skip list names the layer.
  Linear(const Options& options, const Recipe& recipe, parallel::ParameterStore& store, recipes::ScaleState& scales);

  // Hugging Face module name of the first part, with ".fused" when there are several.
  const std::string& name() const { return name_; }
  const std::vector<std::string>& parts() const { return parts_; }
  parallel::Parameter& weight() const { return *weight_; }
  parallel::Parameter* bias() const { return bias_; }  // or null
  bool is_fp8() const { return compute_ == Compute::fp8; }
  Compute compute() const { return compute_; }
  // Whether backward reads X itself, so that the caller must keep it from forward to backward.
  bool keeps_input() const { return !is_fp8() || recipe_.wgrad_bf16; }

  // After scales and parameters are materialised: the weight learns its scale.
  void bind();

  // X [tokens, in] for its producer (a share, where it is gathered), then y, which is overwritten; `residual` (of y's shape and
  // dtype) is optional. `saved`, the same in both calls, is filled when given. What is kept lies in the stash, the rest in the
  // scratch of the caller's scope.
  LinearOperand input(const Scope& scope, std::int64_t tokens, const LinearSaved* saved) const;
  void forward(const Scope& scope, const LinearOperand& x, const Tensor& residual, const Tensor& y, LinearSaved* saved) const;
  // Of an X that exists.
  void forward(const Scope& scope, const Tensor& x, const Tensor& residual, const Tensor& y, LinearSaved* saved) const;

  // Fills `saved` as forward did, bit for bit, recording nothing: X for its producer, from `arena`, then the rest.
  LinearOperand rebuild_input(const Scope& scope, Arena& arena, std::int64_t tokens) const;
  void rebuild(const Scope& scope, const LinearOperand& x, LinearSaved& saved) const;
  // Of an X that exists.
  void rebuild(const Scope& scope, Arena& arena, const Tensor& x, LinearSaved& saved) const;

  // G for its producer, with `values` as its values or working memory (of a linear with a bias that is cut by columns, which
  // writes to the residual stream, its values in any case); codes lie in `memory` where given (of another linear of this recipe
  // and width), else in the scratch. Then gx, which is overwritten (absent: not computed), and the weight's gradient, which is
  // added to.
  LinearOperand gradient(const Scope& scope, const Tensor& values, const Quantized* memory = nullptr) const;
  void backward(const Scope& scope, const LinearOperand& gy, const LinearSaved& saved, const Tensor& gx) const;
  // Of a G that exists.
  void backward(const Scope& scope, const Tensor& gy, const LinearSaved& saved, const Tensor& gx) const;
  // The steps of backward, for who has something to do between them: what of G the producer left, in the scratch of the caller's
  // scope, and the bias's gradient; gx, which is overwritten; the weight's gradient, which is added to.
  LinearOperand complete_gradient(const Scope& scope, const LinearOperand& gy) const;
  void dgrad(const Scope& scope, const LinearOperand& complete, const Tensor& gx) const;
  void wgrad(const Scope& scope, const LinearOperand& complete, const LinearSaved& saved) const;

 private:
  // Whether that is shared out which a cut along this dim gathers: X of rows, G of columns.
  bool gathers(const Scope& scope, parallel::Cut along) const { return along_ == along && scope.tensor.size() > 1; }
  // Whether that is gathered as codes; and whether its producer can make them.
  bool gathers_codes(const Scope& scope, Role role) const;
  bool takes_share_of_codes(const Scope& scope, Role role) const;
  Quantized own_rows(const Scope& scope, const Quantized& whole) const;
  // How an operand is scaled in this pass.
  QuantSpec spec(const Scope& scope, Role role) const;
  void quantize_share(const Scope& scope, const kernels::QuantizeEpilogue& to, const Tensor& values) const;
  // All tokens: values from `arena`, to be quantised to `whole`, or the codes of `whole`.
  LinearOperand gather(const Scope& scope, Role role, const LinearOperand& share, const Quantized& whole, Arena& arena,
                       Record record) const;
  void keep(const Scope& scope, const LinearOperand& x, LinearSaved& saved) const;
  bool watched(const Scope& scope) const;
  // y += bias, and its gradient += what G says.
  void add_bias(const Scope& scope, const Tensor& y) const;
  void add_bias_gradient(const Scope& scope, const Tensor& g) const;
  Quantized empty(const Scope& scope, Role role) const;
  void add_rows(Arena& arena, std::int64_t tokens, std::int64_t cols, Quantized& q) const;
  void add_transposed(Arena& arena, std::int64_t tokens, std::int64_t cols, Quantized& q) const;
  Quantized input_codes(const Scope& scope, std::int64_t tokens, const LinearSaved* saved) const;
  // The weight's codes with their transposed part, made in the scratch where the parameter does not keep it.
  Quantized weight_transposed(const Scope& scope) const;
  Quantized gradient_codes(const Scope& scope, std::int64_t tokens) const;
  // The weight's codes beside X with these tiles.
  Quantized weight_beside(const Scope& scope, ScaleTile tile) const;
  kernels::QuantizeEpilogue to(const Scope& scope, Role role, const Quantized& out, Record record) const;
  void quantize(const Scope& scope, Role role, const LinearOperand& operand, Record record) const;

  std::string name_;
  std::vector<std::string> parts_;
  Recipe recipe_;
  Compute compute_;
  std::int64_t out_ = 0, in_ = 0;  // of this rank's weight
  parallel::Cut along_;
  parallel::Parameter* weight_;
  parallel::Parameter* bias_ = nullptr;
  recipes::ScaleState* scales_;
  int x_slot_ = -1, w_slot_ = -1, g_slot_ = -1;
};

}  // namespace octet::nn
