// Qwen3 (Yang et al., 2025), as transformers' Qwen3ForCausalLM has it: Llama, whose tensors' names it shares, with an RMSNorm on
// each head of Q and K, and heads whose width does not follow from the model's. Qwen3MoeForCausalLM has a mixture of many small
// experts in all layers or some.
#pragma once

#include "octet/models/registry.h"

namespace octet::models {

Family qwen3_family();
Family qwen3_moe_family();

}  // namespace octet::models
