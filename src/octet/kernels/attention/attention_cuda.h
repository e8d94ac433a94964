// The CUDA backend of attention.h: cuDNN. Shapes have been checked and scratch given out in attention.cpp.
#pragma once

#include "octet/kernels/attention/attention.h"

namespace octet::kernels {

namespace cuda {

// Scratch from the shape alone, so that the meta device gives out the same; that cuDNN does not ask for more is checked.
// Throws Error{config} for a head_dim that cuDNN has no kernels for: the meta device says so before any step.
std::size_t attention_forward_bytes(const AttentionForward& op);
std::size_t attention_backward_bytes(const AttentionBackward& op);
void attention_forward(Queue& queue, const AttentionForward& op, void* scratch);
void attention_backward(Queue& queue, const AttentionBackward& op, void* scratch);

std::string attention_library_version();

}  // namespace cuda
}  // namespace octet::kernels
