// Makes the operands of a linear's GEMMs (linear.h).
//
// Quantizing is fused into the op that makes the values (a norm, SwiGLU, RoPE, ...) unless the values are also needed
// elsewhere. So an operand is made in three steps:
//     Operand x = quantizer.allocate(scope, rows, reads);  // memory, and an epilogue for the producer
//     ... the producer writes x.values, or codes through x.epilogue ...
//     x = quantizer.complete(scope, x, reads);             // gathers and quantizes what is left to do
// For values that exist already, start with Operand{.values = ...}; for rowwise codes that other ranks have sent, start with
// Operand{.codes = {.rowwise = ...}}. complete() then does the rest.
// On the t ranks of the tensor axis an operand may be shared: each rank's producer makes a share [T / t, C] of the tokens, and
// complete() gathers all T (nn/sequence.h). Codes and scales are then those of all tokens. If one scale per tensor is known to
// all ranks, each casts its share and the codes are gathered. Finer tiles run along the tokens in one direction, so values are
// gathered and then quantized.
//
// wgrad reads columnwise codes, unless the rowwise codes serve both directions (tensor/quantized.h).
//
// The operand of a linear of many experts has the rows of scope.groups. One launch quantizes it as a separate tensor for each
// expert. Rows from other ranks (nn/expert_rounds.h) travel as codes if each expert has one scale and the sending ranks know
// it, from a history or because they have compared their amaxes. The columnwise codes have the same scale, so complete()
// transposes the rowwise ones.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "octet/kernels/quantize/quantize.h"
#include "octet/nn/scope.h"
#include "octet/recipes/scaler.h"

namespace octet::nn {

// Events of the tokens that ranks fetch from each other (nn/sequence.h).
struct Arrival {
  // received[d - 1]: the tokens of rank (r + d) mod t are in place, where r is this rank.
  std::vector<std::unique_ptr<const Event>> received;
  std::unique_ptr<const Event> sent;  // all ranks have read this rank's tokens, so their memory may be reused
};

// An operand of a GEMM: values if the linear computes in BF16 or FP32, codes if it computes in FP8.
struct Operand {
  Tensor values;         // [T, C]; absent if its producer writes codes instead
  Tensor low_rank = {};  // [T, r]: s x Aᵀ of an adapter (nn/adapter.h), if there is one; of G: s g B
  Quantized codes = {};  // of all T tokens
  Tensor scales = {};  // F32 [groups]: the scales of codes that other ranks have cast; absent if these scales come from histories
  kernels::QuantizeEpilogue epilogue = {};      // for the producer; without parts if complete() quantizes the values
  std::shared_ptr<const Arrival> arrival = {};  // set while other ranks' tokens are on their way: see Quantizer::start()
};

// The GEMMs that will read an operand. For G, read dgrad instead of fprop.
enum class Reads : std::uint8_t {
  fprop,            // no backward pass follows, or it makes X again
  fprop_and_wgrad,  // X is kept from forward to backward
  wgrad,            // X is made again, bit for bit, in the backward pass
};

// The form in which wgrad reads an operand.
enum class WgradReads : std::uint8_t {
  codes,
  values,   // wgrad is not in FP8, or an adapter is trained instead of the weight
  nothing,  // the weight is frozen
};

// The GEMMs that will read an X of this forward pass.
Reads forward_reads(const Scope& scope);

class Quantizer {
 public:
  struct Options {
    std::vector<std::string> linears;  // their names, for a watch: one, or one for each expert
    Role role = Role::activation;      // or gradient
    std::int64_t cols = 0;             // C, of this rank
    bool fp8 = false;                  // false: GEMMs read values
    bool shared = false;               // producers make a share of the tokens
    WgradReads wgrad = WgradReads::values;
    bool reads_values = false;    // the values are read not only by the GEMMs: the sum of a bias's gradient, or an adapter
    std::vector<int> slots = {};  // of each in `scales`, with delayed scaling
    std::vector<int> sent = {};   // the same of the experts of all ranks; empty: not an operand of experts
  };
  // `scales` must outlive the quantizer. The quantizer of experts quantizes the rows of scope.groups.
  Quantizer(const Options& options, const Recipe& recipe, const recipes::ScaleState& scales);

  const Options& options() const { return options_; }
  // Declares that an adapter reads the operand's values, forward and backward.
  void serve_adapter() {
    options_.wgrad = WgradReads::values;
    options_.reads_values = true;
  }
  // Whether wgrad reads X's values instead of its columnwise codes. The caller must then keep the values alive.
  bool keeps_values() const { return options_.wgrad == WgradReads::values; }
  // Whether wgrad reads X at all. X must then be kept or made again.
  bool is_kept() const { return options_.wgrad != WgradReads::nothing; }

  // Returns how the operand is scaled in this pass.
  QuantSpec spec(const Scope& scope) const;

  // Allocates an operand for a producer of `rows` tokens (a share of them if the operand is shared). The part of X that wgrad
  // reads lies in scope.stash, the rest in scope.scratch. An epilogue records the amax if scope.record says so. Callers may
  // pass existing memory: `values`, which the producer writes or uses as scratch while it writes codes, and `codes`.
  Operand allocate(const Scope& scope, std::int64_t rows, Reads reads, const Tensor& values = {},
                   const Quantized* codes = nullptr) const;
  // Allocates G for a producer that has memory for its values, and perhaps for codes that another linear of the same recipe and
  // width has allocated.
  Operand gradient(const Scope& scope, const Tensor& values, const Quantized* codes = nullptr) const {
    return allocate(scope, values.rows(), Reads::fprop_and_wgrad, values, codes);
  }

  // Returns how a producer casts its values to the codes `out`.
  kernels::QuantizeEpilogue cast_to(const Scope& scope, const Quantized& out) const;

  // Returns the dtype in which ranks send each other the rows of this operand: FP8 if every rank can cast them. `whole` says
  // whether all rows are sent at once.
  DType dtype_sent(const Scope& scope, bool whole) const;
  // Whether ranks that send codes must first compute the experts' scales, because the scales depend on these rows.
  bool scales_rows_sent() const { return recipe_.spec(options_.role).source == ScaleSource::tensor; }
  // Returns how a rank casts rows to the rowwise codes `out`. Each expert of any rank has its own scale, in `scales` [E] if
  // given, otherwise in its history.
  kernels::QuantizeEpilogue sent(const Scope& scope, const Tensor& out, const Tensor& scales = {}) const;

  // Returns the operand of all tokens, ready for the GEMMs that read it. Shows it to scope.watch.
  Operand complete(const Scope& scope, const Operand& operand, Reads reads) const;
  // complete() in three steps. After start(), fprop or dgrad may read this rank's own share of the tokens, while copy engines
  // fetch the other shares if the group reaches them (operand.arrival). finish() waits for them. release() waits until the
  // other ranks have read this rank's share. Call it before scope.scratch is released.
  Operand start(const Scope& scope, const Operand& operand, Reads reads) const;
  void finish(const Scope& scope, const Operand& operand) const;
  static void release(const Scope& scope, Operand& operand);
  // Returns T, the number of all tokens of an operand that its producer has made or will make.
  std::int64_t tokens(const Scope& scope, const Operand& operand) const;
  // Returns the part of a completed X that wgrad reads, and that a caller keeps from forward to backward.
  Operand for_wgrad(const Operand& x) const;

 private:
  // Returns `reads`, without wgrad if wgrad does not read X.
  Reads needed(Reads reads) const { return is_kept() ? reads : Reads::fprop; }
  // Whether wgrad reads the same rowwise codes that fprop reads of X, or dgrad of G.
  bool wgrad_reads_rowwise(const Scope& scope) const;
  Arena& kept(const Scope& scope) const { return options_.role == Role::gradient ? scope.scratch : scope.stash.get(); }
  bool gathers(const Scope& scope) const { return options_.shared && scope.tensor.size() > 1; }
  bool gathers_codes(const Scope& scope) const;
  bool producer_casts_share(const Scope& scope) const;
  kernels::QuantizeEpilogue epilogue(const Scope& scope, const Quantized& out, const std::vector<int>& slots) const;
  Quantized own_rows(const Scope& scope, const Quantized& whole) const;
  // Adds rowwise codes in `arena`, or in `memory` if it is given.
  void add_rowwise(Arena& arena, std::int64_t rows, Quantized& q, const Tensor& memory = {}) const;
  Quantized allocate_codes(const Scope& scope, std::int64_t rows, Reads reads, const Tensor& arrived = {}) const;
  void quantize_share(const Scope& scope, const kernels::QuantizeEpilogue& to, const Tensor& values) const;
  void gather_codes(const Scope& scope, Operand& x) const;

  bool grouped() const { return !options_.sent.empty(); }
  std::int64_t group_count() const { return grouped() ? static_cast<std::int64_t>(options_.linears.size()) : 0; }
  void watch(const Scope& scope, const Operand& x) const;

  Options options_;
  Recipe recipe_;
  const recipes::ScaleState* scales_;
};

}  // namespace octet::nn
