// Self-attention, usually with rotary positions: QKV in one linear, grouped-query attention, output linear. Tokens are this
// rank's part of each sequence. Only attention itself sees the tokens of the other ranks of scope.context
// (context_attention.cpp). Forward and backward come in parts, so that exchanges of other layers can be placed between them.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "octet/kernels/attention/attention.h"
#include "octet/kernels/head_norm/head_norm.h"
#include "octet/kernels/rope/rope.h"
#include "octet/nn/linear.h"
#include "octet/nn/norm.h"

namespace octet::nn {

// D is the model's dim, K the head dim. H query heads and G key/value heads belong to this rank; they see all T tokens. h, y,
// residual and their gradients are shares of the tokens, [T / t, D] (nn/sequence.h).
struct AttentionSaved {
  Operand qkv_in;
  Tensor qkv;        // [T, (H + 2G) K], normed and rotated; in FP8 absent after forward_qkv
  Tensor unnormed;   // [T, (H + G) K]: Q and K before their norms, if there are any
  Tensor head_rstd;  // [T, H + G]: of the norms of heads
  Tensor q_statistics, k_statistics;  // of the norms of all of Q and all of K (nn/norm.h)
  Tensor o;          // [T, H K]; backward makes what the output linear's wgrad reads from it; absent in FP8
  // In FP8: rowwise E4M3 codes, each tensor with one scale, of Q [T, H K], K and V [T, G K], and O [T, H K]. The codes of O are
  // also the output linear's X.
  Quantized q_codes, k_codes, v_codes, o_codes;
  Tensor lse;  // [H, T]; only backward can read it, because each sequence of a call of the kernels has a stretch of the memory
};

// Temporaries in the scratch that one part of a backward pass leaves for the next ones.
struct AttentionBackward {
  Operand gy;  // of all tokens, completed
  Tensor go, gqkv;
  Tensor keys, key_gradients;          // used only if the context axis has several ranks
  std::size_t key_gradients_mark = 0;  // the scratch is released to it when the sums are taken
};

// The columns of packed QKV, and of packed K and V.
struct QkvColumns {
  std::int64_t q = 0, kv = 0;  // of Q; of K or V
  explicit QkvColumns(const kernels::AttentionShape& s) : q(s.heads * s.head_dim), kv(s.kv_heads * s.head_dim) {}
  std::int64_t all() const { return q + 2 * kv; }
  Tensor q_of(const Tensor& qkv) const { return qkv.slice_cols(0, q); }
  Tensor kv_of(const Tensor& qkv) const { return qkv.slice_cols(q, all()); }
  Tensor k_of(const Tensor& both) const { return both.slice_cols(0, kv); }
  Tensor v_of(const Tensor& both) const { return both.slice_cols(kv, 2 * kv); }
  std::array<Tensor, 3> split(const Tensor& qkv) const { return {q_of(qkv), k_of(kv_of(qkv)), v_of(kv_of(qkv))}; }
};

class Attention {
 public:
  struct Options {
    std::string name;                                               // "model.layers.0.self_attn"
    std::vector<std::string> qkv = {"q_proj", "k_proj", "v_proj"};  // its modules: these, or one of all three
    std::string output = "o_proj";
    std::int64_t dim = 0, heads = 0, kv_heads = 0, head_dim = 0;  // of the whole layer
    std::int64_t window = 0;      // largest number of tokens that a token sees, including itself; 0: no limit
    bool rotary = true;           // Q and K are rotated (kernels/rope)
    std::int64_t rotary_dim = 0;  // of each head; 0: all
    double scale = 0;             // of the scores; 0: 1 / sqrt(head_dim)
    bool qkv_bias = false, output_bias = false;
    QkNorm qk_norm = QkNorm::none;
    double norm_epsilon = 0;  // of these norms
    double init_std = 0.02, output_init_std = 0.02;
  };
  Attention(const Options& options, const Recipe& recipe, parallel::ParameterStore& store, recipes::ScaleState& scales);

  // Allocates h for its producer.
  Operand input(const Scope& scope, std::int64_t tokens) const { return qkv_.x().allocate(scope, tokens, forward_reads(scope)); }
  // Whether backward reads h.
  bool keeps_input() const { return qkv_.x().is_kept(); }
  // Completes an h that a rebuild scope has made again, because selective checkpointing did not keep it.
  void rebuild(const Scope& scope, const Operand& h, AttentionSaved& saved) const {
    saved.qkv_in = qkv_.complete_input(scope, h, forward_reads(scope));
  }

  // The parts of forward, in this order. Each overwrites what it names in `saved`, which lies in the stash.
  // Computes Q, K and V from h, and applies the norms of Q and K, if there are any, and the rotation.
  void forward_qkv(const Scope& scope, const Operand& h, AttentionSaved& saved) const;
  // Returns the keys and values of all ranks of scope.context, in the scratch; absent on one rank.
  Tensor gather_keys(const Scope& scope, const AttentionSaved& saved) const;
  // o = softmax(scale Q Kᵀ + mask) V. May write to the spare rows of `keys`.
  void forward_attention(const Scope& scope, const Tensor& keys, AttentionSaved& saved) const;
  // y = o Wᵀ + residual; y is overwritten.
  void forward_output(const Scope& scope, const Tensor& residual, const Tensor& y, const AttentionSaved& saved) const;

  // The parts of backward, in this order. Those marked * run only with a context axis. The caller makes the streams wait for each
  // other (parallel::Part::keys). * Fetches K and V of the other ranks on StreamId::params while the next parts run. Call it
  // before any rank overwrites its qkv. If the group reaches qkv's memory, qkv has the same place on all ranks.
  void gather_keys_ahead(const Scope& scope, const AttentionSaved& saved, AttentionBackward& work) const;
  // dgrad of the output linear. gy comes from output().g().gradient().
  void backward_output(const Scope& scope, const Operand& gy, AttentionBackward& work) const;
  // Attention itself: first the products that need no keys of other ranks, then * the others.
  void backward_attention(const Scope& scope, const AttentionSaved& saved, AttentionBackward& work) const;
  void backward_attention_rest(const Scope& scope, const AttentionSaved& saved, AttentionBackward& work) const;
  // * Sums the gradients of keys over the ranks on StreamId::context while the next parts run.
  void sum_key_gradients(const Scope& scope, const AttentionSaved& saved, AttentionBackward& work) const;
  // wgrad of the output linear. May run anywhere between backward_output and backward_qkv, so that it hides exchanges.
  void backward_output_wgrad(const Scope& scope, const AttentionSaved& saved, const AttentionBackward& work) const;
  // The remaining part: RoPE and the QKV linear. Overwrites gh [T / t, D].
  void backward_qkv(const Scope& scope, const AttentionSaved& saved, AttentionBackward& work, const Tensor& gh) const;
  // Whether RoPE is the last op before the QKV linear in backward, so that it writes the codes of the gradient.
  bool rope_writes_gradient() const { return options_.rotary && options_.qk_norm == QkNorm::none; }

  // Whether a pass of this kind multiplies codes. Calibration does not, because it determines the scales that a cast would
  // need.
  bool is_fp8(const Scope& scope) const { return casts_operands() && scope.pass != Pass::calibration; }

  Linear& qkv() { return qkv_; }
  Linear& output() { return output_; }
  const Linear& output() const { return output_; }

 private:
  kernels::AttentionShape shape(const Scope& scope) const;
  kernels::Rope rope(const Scope& scope, const Tensor& x) const;
  // In qk_norm.cpp.
  kernels::HeadNorm head_norm() const;
  void norm_forward(const Scope& scope, AttentionSaved& saved) const;
  void norm_backward(const Scope& scope, const AttentionSaved& saved, const Tensor& gqkv) const;
  // FP8, in attention_fp8.cpp.
  Quantizer quantizer(const char* operand, Role role, std::int64_t cols, const Recipe& recipe, recipes::ScaleState& scales) const;
  void cast_operands(const Scope& scope, AttentionSaved& saved) const;
  void attend_on_codes(const Scope& scope, const AttentionSaved& saved) const;
  void backward_from_codes(const Scope& scope, const AttentionSaved& saved, const AttentionBackward& work) const;
  void backward_in_fp8(const Scope& scope, const AttentionSaved& saved, const AttentionBackward& work) const;
  void calibrate_gradients(const Scope& scope, const AttentionSaved& saved, const AttentionBackward& work) const;
  template <class Op>
  Op with_shape(const Scope& scope, const AttentionSaved& saved, Op op) const;
  Operand output_input(const Scope& scope, const AttentionSaved& saved) const;
  void take_key_gradients(const Scope& scope, AttentionBackward& work) const;
  bool casts_operands() const { return precision_ != AttentionPrecision::bf16; }
  bool casts_gradients() const { return precision_ == AttentionPrecision::fp8; }

  Options options_;
  std::int64_t heads_, kv_heads_;  // of this rank
  QkvColumns columns_;
  Linear qkv_;
  std::optional<Norm> q_norm_, k_norm_;
  Linear output_;
  AttentionPrecision precision_;      // as the recipe wants it, but BF16 if the output linear reads no codes
  Quantizer q_, k_, v_;               // used only in FP8
  Quantizer go_, ds_, gq_, gk_, gv_;  // used only if backward is in FP8, too
};

// Whether the ranks of a context axis also keep keys in the order of the sequence, so that every call of the kernels has a
// mask. They do if a window hides the keys before a range, or if a call without a mask would not be safe
// (kernels::attention_is_safe_without_mask). Documents require it, too.
bool keeps_keys_in_order(const kernels::AttentionShape& shape, std::int64_t seq_len, int ranks);

}  // namespace octet::nn
