// Embedding look-up:  y[t] = table[tokens[t]].
#pragma once

#include "octet/device/arena.h"
#include "octet/device/device.h"
#include "octet/tensor/tensor.h"

namespace octet::kernels {

// The table may be a shard of the vocabulary, rows [first, first + rows). Tokens of other shards then give zeros, so that the
// sum over all shards is the complete result, and they receive no gradient.
struct EmbeddingForward {
  Tensor tokens;                           // [T] I32, each in [0, V)
  Tensor table;                            // [V, D] BF16, F32 or F64, or a shard of its rows
  Tensor y;                                // [T, D] of the table's dtype; overwritten
  std::int64_t first = 0, vocabulary = 0;  // V; 0: the table has all rows
};
void embedding_forward(Stream& stream, const EmbeddingForward& op);

// gtable[tokens[t]] += gy[t]. Each row is summed in FP32 (F64 for F64) in the order of t, so the result is deterministic.
struct EmbeddingBackward {
  Tensor tokens;  // [T] I32
  Tensor gy;      // [T, D]
  Tensor gtable;  // [V, D] F32, BF16 or F64, or a shard of its rows; accumulated into
  std::int64_t first = 0, vocabulary = 0;
};
void embedding_backward(Stream& stream, Arena& scratch, const EmbeddingBackward& op);

}  // namespace octet::kernels
