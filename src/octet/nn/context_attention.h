// Causal attention of packed, rotated QKV over sequences that the c ranks of scope.context share (parallel/context.h). On one
// rank these are kernels::attention_forward and _backward.
//
// Forward gathers the keys and values of all ranks, and keeps nothing of them, so backward gathers them again, beside what a
// block does before the gradient of its attention. A rank has two ranges of each sequence. Forward, each range is one call on the
// keys up to its end, from the first that its window shows, aligned to the bottom right. With a window or documents backward does
// the same. Without them it is three calls: all ranges on their own keys, which need not be gathered, and each range on the keys
// before it. (cuDNN 9.19 works through a rectangle whose corner is masked as if it were not: on an H100, chunks 3 and 4 of 8 of a
// sequence of 16,384 tokens take 3.06 ms as one call each.) The keys before a range may have any order then, so neither the
// gathered keys nor the sums of their gradients are reordered. With a window or documents they are.
//
// The gradients of the two parts are rounded before they are added. Bytes that a call sends, if this rank's K and V [T, 2 G K]
// are n: forward (c - 1) n, backward 2 (c - 1) n. Scratch beside that of the kernels, if K and V of whole sequences are N = c n:
// forward N + n / 2; backward 2 N, and while it runs less than N / 2 B and half of op.o of a sequence; with a window or
// documents 1.5 N, and 2.5 N and at most N / B.
#pragma once

#include <memory>

#include "octet/kernels/attention/attention.h"
#include "octet/nn/scope.h"

namespace octet::nn {

// Whether keys are also kept in the order of the sequence and every call has a mask. That is so if a window hides keys before a
// range, or if a call without a mask would not be safe (kernels::attention_is_safe_without_mask). Documents require it, too.
bool keeps_keys_in_order(const kernels::AttentionShape& shape, std::int64_t seq_len, int ranks);

// K and V of whole sequences, [B S, 2 G K] or half as much again, in scope.scratch; absent on one rank. Gathered on scope.stream,
// from the packed, rotated qkv [T, (H + 2G) K] of all ranks.
Tensor gather_keys(const Scope& scope, const kernels::AttentionShape& shape, const Tensor& qkv);

// T = B S / c tokens of this rank.
struct ContextAttentionForward {
  kernels::AttentionShape shape;  // batch: B
  Tensor qkv;                     // [T, (H + 2G) K]
  Tensor keys;                    // of gather_keys(); this call may write to its spare rows
  Tensor o;                       // [T, H K] overwritten
  Tensor lse;  // [H, T] overwritten; only backward can read it, because each sequence of a call has a stretch of the memory
};
void context_attention_forward(const Scope& scope, const ContextAttentionForward& op);

// A tensor that a communication stream is making; the event `ready` is behind it.
struct Arriving {
  Tensor tensor;
  std::unique_ptr<Event> ready;
};

// The same keys for backward, on scope.params_stream. Comes before any rank overwrites its qkv. If the group reaches qkv's
// memory, it has the same place on all ranks.
Arriving gather_keys_ahead(const Scope& scope, const kernels::AttentionShape& shape, const Tensor& qkv);

struct ContextAttentionBackward {
  kernels::AttentionShape shape;
  Tensor qkv, o, lse;  // as in forward
  Tensor go;           // [T, H K]
  Tensor gqkv;         // [T, (H + 2G) K] overwritten by the four calls below together
};
// First the gradients of this rank's tokens on its own keys, as far as they need no others. On one rank that is everything.
void context_attention_backward_own(const Scope& scope, const ContextAttentionBackward& op);
// Waits for `keys` and adds the rest. Returns this rank's gradients of all keys, in scope.scratch.
Tensor context_attention_backward_rest(const Scope& scope, const ContextAttentionBackward& op, const Arriving& keys);
// Sums them over the ranks, on scope.context_stream.
Arriving sum_key_gradients(const Scope& scope, const ContextAttentionBackward& op, const Tensor& gradients);
// Waits for the sums, and takes those of this rank's own keys to gqkv.
void take_key_gradients(const Scope& scope, const ContextAttentionBackward& op, const Arriving& sums);

}  // namespace octet::nn
