// The CUDA backend of attention.h, with cuDNN. attention.cpp checks the shapes and allocates the scratch.
#pragma once

#include "octet/kernels/attention/attention.h"

namespace octet::kernels {

namespace cuda {

// Bytes of scratch. They follow from the shape alone, so that the meta device allocates
// the same; a call checks that cuDNN asks for no more. Throws Error{config} if cuDNN has
// no kernels for the head_dim, so the meta device reports this before the first step.
std::size_t attention_forward_bytes(const AttentionForward& op);
std::size_t attention_backward_bytes(const AttentionBackward& op);
void attention_forward(Stream& stream, const AttentionForward& op, void* scratch);
void attention_forward_fp8(Stream& stream, const AttentionForwardFp8& op, void* scratch);
void attention_backward(Stream& stream, const AttentionBackward& op, void* scratch);
void attention_backward_fp8(Stream& stream, const AttentionBackwardFp8& op, void* scratch);

std::string attention_library_version();

}  // namespace cuda
}  // namespace octet::kernels
