// Qwen2 and Qwen2.5 (Yang et al., 2024), as transformers' Qwen2ForCausalLM has them: Llama, whose tensors' names they share, with
// a bias on Q, K and V. Some layers may have a sliding window; the published models do not use it.
#pragma once

#include "octet/models/decoder/config_json.h"
#include "octet/models/registry.h"

namespace octet::models {

Family qwen2_family();

// Reads and writes the layers' windows, in the way that Qwen2 and Qwen3 share.
void parse_qwen_windows(const JsonReader& read, DecoderConfig& config);
void write_qwen_windows(const DecoderConfig& config, nlohmann::ordered_json& object);

}  // namespace octet::models
