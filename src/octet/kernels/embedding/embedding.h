// Embedding:  y[t] = table[tokens[t]].
#pragma once

#include "octet/device/arena.h"
#include "octet/device/device.h"
#include "octet/tensor/tensor.h"

namespace octet::kernels {

// A table may be a part of the vocabulary's, rows [first, first + rows): tokens of other parts then give zeros, so that the sum
// over the parts is the whole look-up, and no gradient.
struct EmbeddingForward {
  Tensor tokens;  // [T] I32, each in [0, V)
  Tensor table;   // [V, D] BF16, F32 or F64; or rows of it
  Tensor y;       // [T, D] of the table's dtype; overwritten
  std::int64_t first = 0, vocabulary = 0;  // V; 0: the table has all rows
};
void embedding_forward(Queue& queue, const EmbeddingForward& op);

// gtable[tokens[t]] += gy[t], each row summed in FP32 (F64) in the order of t: deterministic.
struct EmbeddingBackward {
  Tensor tokens;  // [T] I32
  Tensor gy;      // [T, D]
  Tensor gtable;  // [V, D] F32, BF16 or F64; or rows of it; added to
  std::int64_t first = 0, vocabulary = 0;
};
void embedding_backward(Queue& queue, Arena& scratch, const EmbeddingBackward& op);

}  // namespace octet::kernels
