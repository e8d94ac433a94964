// Embedding:  y[t] = table[tokens[t]].
#pragma once

#include "octet/device/arena.h"
#include "octet/device/device.h"
#include "octet/tensor/tensor.h"

namespace octet::kernels {

struct EmbeddingForward {
  Tensor tokens;  // [T] I32, each in [0, V)
  Tensor table;   // [V, D] BF16, F32 or F64
  Tensor y;       // [T, D] of the table's dtype; overwritten
};
void embedding_forward(Queue& queue, const EmbeddingForward& op);

// gtable[tokens[t]] += gy[t], each row summed in FP32 (F64) in the order of t: deterministic.
struct EmbeddingBackward {
  Tensor tokens;  // [T] I32
  Tensor gy;      // [T, D]
  Tensor gtable;  // [V, D] F32, BF16 or F64; added to
};
void embedding_backward(Queue& queue, Arena& scratch, const EmbeddingBackward& op);

}  // namespace octet::kernels
