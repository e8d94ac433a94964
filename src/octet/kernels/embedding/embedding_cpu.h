#pragma once

#include <cstdint>

#include "octet/kernels/embedding/embedding.h"

namespace octet::kernels::cpu {

void embedding_forward(const EmbeddingForward& op);
// `order` has room for T numbers.
void embedding_backward(const EmbeddingBackward& op, std::int64_t* order);

}  // namespace octet::kernels::cpu
