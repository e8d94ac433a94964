// The functions that make the model families, one folder for each. family_of() in registry.h calls them.
#pragma once

#include "octet/models/registry.h"

namespace octet::models {

Family gpt_neo_family();
Family gpt_neox_family();
Family llama_family();
Family mistral_family();
Family mixtral_family();
Family olmo2_family();
Family phi3_family();
Family qwen2_family();
Family qwen3_family();
Family qwen3_moe_family();

}  // namespace octet::models
