// Mistral 7B (Jiang et al., 2023), as transformers' MistralForCausalLM has it: Llama, whose tensors' names it shares, with a
// sliding window. Version 0.1 has one of 4096 tokens, later ones none.
#pragma once

#include "octet/models/registry.h"

namespace octet::models {

Family mistral_family();

}  // namespace octet::models
