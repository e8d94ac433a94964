// The CUDA backend of embedding.h. Checked, counted and given scratch in embedding.cpp.
#pragma once

#include "octet/device/arena.h"
#include "octet/kernels/embedding/embedding.h"

namespace octet::kernels::cuda {

void embedding_forward(Queue& queue, const EmbeddingForward& op);
// Bytes of scratch for T tokens.
std::size_t embedding_scratch_bytes(std::int64_t tokens);
// `scratch` has that many bytes, in device memory.
void embedding_backward(Queue& queue, const EmbeddingBackward& op, void* scratch);

}  // namespace octet::kernels::cuda
