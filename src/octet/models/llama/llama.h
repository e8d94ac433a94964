// Llama 2, 3, 3.1 and 3.2 (Touvron et al., 2023; Dubey et al., 2024), as transformers' LlamaForCausalLM has them.
#pragma once

#include "octet/models/registry.h"

namespace octet::models {

Family llama_family();

}  // namespace octet::models
