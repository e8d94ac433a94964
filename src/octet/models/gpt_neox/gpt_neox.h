// GPT-NeoX (Black et al., 2022) and Pythia (Biderman et al., 2023), as transformers' GPTNeoXForCausalLM has them: layer norms
// with biases, linears with biases, GELU, rotation of a part of each head, and attention beside the feed-forward layer or before
// it.
#pragma once

#include "octet/models/registry.h"

namespace octet::models {

Family gpt_neox_family();

// query_key_value has the rows [H, 3, K]: query, key and value of one head after the other. Ours has all queries, then all keys,
// then all values.
parallel::NameTable gpt_neox_names(Decoder& model);

}  // namespace octet::models
