// GPT-Neo (Black et al., 2021), as transformers' GPTNeoForCausalLM has it: learned positions, layer norms with biases, GELU, and
// attention whose scores are not scaled; every second layer sees only a window.
#pragma once

#include "octet/models/registry.h"

namespace octet::models {

Family gpt_neo_family();

}  // namespace octet::models
