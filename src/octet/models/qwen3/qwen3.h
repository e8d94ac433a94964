// Qwen3 (Yang et al., 2025), as transformers' Qwen3ForCausalLM has it: Llama, whose tensors' names it shares, with an RMSNorm on each
// head of Q and K, and heads whose width does not follow from the model's.
#pragma once

#include "octet/models/registry.h"

namespace octet::models {

Family qwen3_family();

}  // namespace octet::models
