// The CUDA backend of embedding.h. embedding.cpp checks the operands, counts the work and allocates the scratch.
#pragma once

#include "octet/device/arena.h"
#include "octet/kernels/embedding/embedding.h"

namespace octet::kernels::cuda {

void embedding_forward(Stream& stream, const EmbeddingForward& op);
// Bytes of scratch for T tokens.
std::size_t embedding_scratch_bytes(std::int64_t tokens);
// `scratch` has embedding_scratch_bytes(T) bytes of device memory.
void embedding_backward(Stream& stream, const EmbeddingBackward& op, void* scratch);

}  // namespace octet::kernels::cuda
