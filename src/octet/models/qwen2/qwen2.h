// Qwen2 and Qwen2.5 (Yang et al., 2024), as transformers' Qwen2ForCausalLM has them: Llama, whose tensors' names they share, with
// a bias on Q, K and V. Some layers may have a sliding window; the published models do not use it.
#pragma once

#include "octet/models/decoder/config_json.h"
#include "octet/models/registry.h"

namespace octet::models {

Family qwen2_family();

// Read and write the window that all Qwen families may have, and which layers of Qwen2 and Qwen3 have it.
void parse_qwen_window(const JsonReader& read, DecoderConfig& config);
void parse_qwen_window_layers(const JsonReader& read, DecoderConfig& config);
void write_qwen_window(const DecoderConfig& config, nlohmann::ordered_json& object);
void write_qwen_window_layers(const DecoderConfig& config, nlohmann::ordered_json& object);

}  // namespace octet::models
