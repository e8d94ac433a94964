// Causal grouped-query attention, blocked: memory is linear in the sequence (Dao et al., FlashAttention-2, 2023).
//   S = scale * Q Kᵀ (masked), P = softmax(S), O = P V, lse = log sum exp S.
// Token i of q may see token j of k when j <= i + (Sk - Sq): bottom-right alignment for unequal lengths. A query that
// sees no key has o = 0, lse = -inf and no gradient. Work counts visible pairs only: 2 products forward, 5 backward.
// `window` hides what lies further back: j > i + (Sk - Sq) - window, so that a query sees its own token and window - 1 before it
// (Beltagy et al., Longformer, 2020). `first_keys` hides the beginning of the keys as well, so that documents of one sequence do
// not see each other. The CPU passes over tiles of keys that no query of a block sees. Work is counted as without `first_keys`:
// it depends on the data. Gradients of part of the keys are those of a call on them with o and lse of all.
// On CUDA: BF16 alone, head_dim a multiple of 8 up to 256, Sq <= Sk where not all is visible, and rows that begin at multiples of 16
// bytes.
// With first_keys queries of equal ones that follow each other are a document (attention_documents.h); documents share no key,
// head_dim is a multiple of 16, and `deterministic` is refused.
#pragma once

#include <string>

#include "octet/device/arena.h"
#include "octet/device/device.h"
#include "octet/tensor/tensor.h"

namespace octet::kernels {

enum class Visible : std::uint8_t {
  causal,
  all,  // every query sees every key; with neither window nor first_keys
};

struct AttentionShape {
  std::int64_t batch = 1;     // B sequences; rows of q are B x Sq, rows of k and v B x Sk
  std::int64_t heads = 1;     // H query heads
  std::int64_t kv_heads = 1;  // G, divides H: query head h reads key/value head h / (H / G)
  std::int64_t head_dim = 1;  // K
  double scale = 1.0;         // usually 1 / sqrt(K)
  std::int64_t window = 0;    // keys that a query sees at most; 0: all before it
  Visible visible = Visible::causal;
  // On CUDA: the backward pass that gives the same bits every time; slower, and its scratch grows with the square of the
  // sequence. The CPU always is.
  bool deterministic = false;
};

struct AttentionForward {
  AttentionShape shape;
  Tensor q;           // [B Sq, H K]  BF16, F32 or F64; rows may be strided (a slice of packed QKV), so too k and v
  Tensor k;           // [B Sk, G K]
  Tensor v;           // [B Sk, G K]
  Tensor first_keys;  // [B Sq] I32, or absent: token i of q sees no key of its sequence before this one
  std::int64_t keys_before = 0;  // keys of the sequence that stand before the first of k: first_keys counts them
  std::int64_t documents = 0;    // with first_keys, which lie on the device: how many documents the call has at most
  Tensor o;           // [B Sq, H K]  overwritten
  Tensor lse;  // [B H, Sq]    F32 (F64 for F64); overwritten; natural logarithm. With first_keys CUDA keeps it as [B Sq, H] in the
               //              same memory: only attention_backward on the same device reads it
};
void attention_forward(Queue& queue, Arena& scratch, const AttentionForward& op);

// gV = Pᵀ gO, dP = gO Vᵀ, dS = P (dP - rowsum(gO O)), gQ = scale dS K, gK = scale dSᵀ Q. Deterministic on the CPU.
struct AttentionBackward {
  AttentionShape shape;
  Tensor q, k, v, first_keys;          // as in forward
  std::int64_t keys_before = 0, documents = 0;
  Tensor o, lse;
  Tensor go;                           // [B Sq, H K]
  Tensor gq, gk, gv;                   // as q, k, v; overwritten; rows may be strided
};
void attention_backward(Queue& queue, Arena& scratch, const AttentionBackward& op);

// Whether the window is shorter than sk keys.
bool attention_hides_keys(const AttentionShape& shape, std::int64_t sk);
// How many of the first of sk keys no query of sq sees, because of the window.
std::int64_t attention_unseen_keys(const AttentionShape& shape, std::int64_t sq, std::int64_t sk);

// "cuDNN 9.19.0"; empty without the CUDA backend.
std::string attention_library_version();

}  // namespace octet::kernels
