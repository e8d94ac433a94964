// Causal attention of packed, rotated QKV over sequences whose parts the c ranks of scope.context hold (parallel/context.h); on
// one rank kernels::attention_forward and _backward themselves.
//
// Keys and values of all ranks are gathered for the time of a call; nothing of them is kept, so backward gathers them again,
// beside what a block does before the gradient of its attention. Forward, each range of a sequence that a rank holds then is one
// call on the keys up to its end, from the first that its window shows, aligned to the bottom right; backward too, with a window
// or documents. Without, backward is three: all ranges on their own keys, which needs nothing gathered, and each range on what is
// before it. (cuDNN 9.19 works through a rectangle whose corner is masked as if it were not: on an H100, chunks 3 and 4 of 8 of a
// sequence of 16,384 tokens take 3.06 ms as one call each.) Keys before a range may stand in any order there, so what is gathered
// and what is summed, both half by half, is not put in another; with a window or documents it is.
//
// Shares of gradients are rounded before they are added; those of keys and values are summed over the ranks, beside what the
// caller has to do meanwhile. Sent per call, n being the bytes of this rank's K and V [T, 2 G K]: forward (c - 1) n, backward 2
// (c - 1) n. Scratch beside that of the calls, N = c n being K and V of whole sequences: forward N + n / 2, backward 2 N and in
// the call less than N / 2 B and half of op.o of a sequence; with a window or documents 1.5 N, and 2.5 N and at most N / B.
#pragma once

#include <functional>
#include <memory>

#include "octet/kernels/attention/attention.h"
#include "octet/nn/scope.h"

namespace octet::nn {

// Whether keys are also kept in the order of the sequence and every call has a mask: a window hides keys before a range, or a
// call without a mask would be one that is not safe (kernels::attention_is_safe_without_mask). Documents require it, too.
bool keeps_keys_in_order(const kernels::AttentionShape& shape, std::int64_t seq_len, int ranks);

// T = B S / c tokens of this rank.
struct ContextAttentionForward {
  kernels::AttentionShape shape;  // batch: B
  Tensor qkv;                     // [T, (H + 2G) K]
  Tensor o;                       // [T, H K]  overwritten
  Tensor lse;  // [H, T]    overwritten. Each sequence of a call has a piece of the memory, as it came: backward
               //           alone can read it
};
// `gathered` is called when all keys and values are there.
void context_attention_forward(const Scope& scope, const ContextAttentionForward& op, const std::function<void()>& gathered);

// K and V of whole sequences on their way to this rank; nothing on one rank.
struct WholeKv {
  Tensor keys;  // [B S, 2 G K], or half as much again
  std::unique_ptr<Event> ready;
};
// Of `qkv` as in forward, which has been enqueued on all ranks. On scope.wire; memory from scratch, for backward, which must come
// before any rank overwrites its qkv. Where the group reaches that memory, it lies in one place on all ranks.
WholeKv gather_ahead(const Scope& scope, const kernels::AttentionShape& shape, const Tensor& qkv);

struct ContextAttentionBackward {
  kernels::AttentionShape shape;
  Tensor qkv, o, lse;  // as in forward
  Tensor go;           // [T, H K]
  Tensor gqkv;         // [T, (H + 2G) K] overwritten
  const WholeKv& kv;   // gathered ahead
};
// `meanwhile` is called while the gradients of keys and values are on their way, on scope.context_stream; of one rank it is not
// called.
void context_attention_backward(const Scope& scope, const ContextAttentionBackward& op, const std::function<void()>& meanwhile);

}  // namespace octet::nn
