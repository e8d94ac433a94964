// Causal grouped-query attention, blocked, with memory linear in the sequence length (Dao, FlashAttention-2, 2023).
//   S = scale * Q Kᵀ (masked), P = softmax(S), O = P V, lse = log sum exp S.
// Query i sees key j if j <= i + (Sk - Sq), so unequal lengths are aligned at the bottom right. A query that sees no key has
// o = 0, lse = -inf and no gradient. `window` further requires j > i + (Sk - Sq) - window: a query sees its own token and the
// window - 1 tokens before it (Beltagy et al., Longformer, 2020). `first_keys` hides each query's keys before a given one, so
// that the documents of a sequence do not see each other.
//   work       counts only visible pairs: 2 GEMMs forward, 5 backward. It ignores `first_keys`, which depends on the data
//   gradients  a backward call on some of the keys, with o and lse of all keys, gives the gradients of those keys
//   CPU        a processor with matrix tiles (kernels/tiles) multiplies BF16 by them and rounds P and dS to BF16 first
//   CUDA       BF16 only; head_dim a multiple of 8 up to 256; Sq <= Sk unless Visible::all; rows start at multiples of 16 bytes
//   CUDA with first_keys  consecutive queries with equal first_keys form a document (attention_documents.h); documents share no
//              key; head_dim is a multiple of 16; `deterministic` is rejected
#pragma once

#include <string>

#include "octet/device/arena.h"
#include "octet/device/device.h"
#include "octet/kernels/quantize/quantize.h"
#include "octet/tensor/tensor.h"

namespace octet::kernels {

enum class Visible : std::uint8_t {
  causal,
  all,  // every query sees every key; requires window = 0 and no first_keys
};

struct AttentionShape {
  std::int64_t batch = 1;     // B sequences; rows of q are B x Sq, rows of k and v B x Sk
  std::int64_t heads = 1;     // H query heads
  std::int64_t kv_heads = 1;  // G, divides H: query head h reads key/value head h / (H / G)
  std::int64_t head_dim = 1;  // K
  double scale = 1.0;         // usually 1 / sqrt(K)
  std::int64_t window = 0;    // largest number of keys that a query sees; 0: no limit
  Visible visible = Visible::causal;
  // On CUDA: use the backward pass that gives the same bits every time. It is slower and its scratch grows with the square of the
  // sequence length. The CPU is always deterministic.
  bool deterministic = false;
};

struct AttentionForward {
  AttentionShape shape;
  Tensor q;                      // [B Sq, H K]  BF16, F32 or F64; rows of q, k and v may be strided (slices of packed QKV)
  Tensor k;                      // [B Sk, G K]
  Tensor v;                      // [B Sk, G K]
  Tensor first_keys;             // [B Sq] I32, optional: query i sees no key of its sequence before this one
  std::int64_t keys_before = 0;  // keys of the sequence before k's first; first_keys includes them
  std::int64_t documents = 0;    // with first_keys on CUDA: an upper bound of the number of documents
  Tensor o;                      // [B Sq, H K]  overwritten
  Tensor lse;  // [B H, Sq]    F32 (F64 for F64); overwritten; natural logarithm. With first_keys, CUDA stores it as [B Sq, H] in
               //              the same memory, so only attention_backward on the same device can read it
};
void attention_forward(Stream& stream, Arena& scratch, const AttentionForward& op);

// The same from E4M3 codes with one scale for each tensor (docs/numerics.md, "Attention in FP8"):
//   S = scale * scale_inv(Q) * scale_inv(K) * codes(Q) codes(K)ᵀ,  O = scale_inv(V) / 256 * codes(256 p) codes(V) / sum p
// with p = exp(S - m), where m is the largest logit that the query has met so far, and sum p and lse from p before it is rounded.
// O is rounded to BF16 and then cast as `o` says. cuDNN casts without rounding to BF16 first.
//   CUDA  compute capability 9.0 and later; head_dim a multiple of 16 up to 256; no window, documents or unequal lengths
inline constexpr float kProbabilityScale = 256;  // the largest power of two that maps 1 to a finite E4M3 code
struct AttentionForwardFp8 {
  AttentionShape shape;        // Visible::causal
  Quantized q, k, v;           // rowwise codes, shaped as q, k and v above, contiguous; per-tensor scales
  Tensor first_keys;           // as above
  std::int64_t documents = 0;  // as above
  QuantizeEpilogue o;          // rowwise codes [B Sq, H K] with the scale of a history, and its scale_inv; overwritten
  Tensor lse;                  // [B H, Sq] F32; overwritten
};
void attention_forward_fp8(Stream& stream, Arena& scratch, const AttentionForwardFp8& op);

// The gradients of attention_forward_fp8, from codes:
//   P  = exp(S - lse)
//   gV = scale_inv(gO) / 256 * codes(256 P)ᵀ codes(gO), where codes(256 P) are E4M3
//   dS = scale P (scale_inv(gO) scale_inv(V) codes(gO) codes(V)ᵀ - rowsum(gO O)), with the values of codes in the sum
//   gQ = scale_inv(dS) scale_inv(K) * codes(dS) codes(K),  gK = scale_inv(dS) scale_inv(Q) * codes(dS)ᵀ codes(Q)
// gQ, gK and gV are rounded to BF16 and then cast as gq, gk and gv say. cuDNN casts without rounding to BF16 first.
//   CUDA  what forward requires, and head_dim = 128; `deterministic` is rejected. Each sequence has a call of cuDNN of its own
struct AttentionBackwardFp8 {
  AttentionShape shape;
  Quantized q, k, v, o;        // as in forward
  Quantized go;                // rowwise codes [B Sq, H K] of either format, contiguous, with one scale
  Tensor first_keys;           // as above
  std::int64_t documents = 0;  // as above
  Tensor lse;
  QuantizeEpilogue ds;          // how dS is cast: in the format of go, with the scale of a history; without parts
  QuantizeEpilogue gq, gk, gv;  // rowwise codes in the format of go, with scales of histories, and scale_inv; overwritten
};
void attention_backward_fp8(Stream& stream, Arena& scratch, const AttentionBackwardFp8& op);

// gV = Pᵀ gO, dP = gO Vᵀ, dS = P (dP - rowsum(gO O)), gQ = scale dS K, gK = scale dSᵀ Q. Deterministic on the CPU.
struct AttentionBackward {
  AttentionShape shape;
  Tensor q, k, v, first_keys;  // as in forward
  std::int64_t keys_before = 0, documents = 0;
  Tensor o, lse;
  Tensor go;          // [B Sq, H K]
  Tensor gq, gk, gv;  // shaped as q, k, v; overwritten; rows may be strided
};
void attention_backward(Stream& stream, Arena& scratch, const AttentionBackward& op);

// Whether the window hides any of sk keys.
bool attention_hides_keys(const AttentionShape& shape, std::int64_t sk);
// The number of the first of sk keys that none of sq queries sees because of the window.
std::int64_t attention_unseen_keys(const AttentionShape& shape, std::int64_t sq, std::int64_t sk);

// Whether backward may be called with Visible::all and sk keys. On Hopper, cuDNN 9.19's backward without a mask returns NaN if 64
// of the 128 keys of the last tile exist and the lse of a row is below -88.7, because exp(0 - lse) overflows in the rest of the
// tile (tests/gpu/attention_extremes_test.cpp). With a causal mask, a window or documents it does not.
constexpr bool attention_is_safe_without_mask(std::int64_t sk) { return sk % 128 != 64; }

// "cuDNN 9.19.0", or "" without the CUDA backend.
std::string attention_library_version();

}  // namespace octet::kernels
