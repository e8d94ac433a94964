// Mixtral 8x7B and 8x22B (Jiang et al., 2024), as transformers' MixtralForCausalLM has them.
#pragma once

#include "octet/models/registry.h"

namespace octet::models {

Family mixtral_family();

}  // namespace octet::models
