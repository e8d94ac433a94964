// Qwen2 and Qwen2.5 (Yang et al., 2024), as transformers' Qwen2ForCausalLM has them: Llama, whose tensors' names they share, with
// a bias on Q, K and V. Some layers may have a sliding window; the published models do not use it.
#include "octet/base/require.h"
#include "octet/models/decoder/config_json.h"
#include "octet/models/families.h"

namespace octet::models {
namespace {

DecoderConfig parse_qwen2(const JsonReader& read) {
  DecoderConfig c = parse_decoder(read, {.kv_heads = 32, .max_position = 32768});
  c.qkv_bias = true;
  parse_qwen_window(read, c);
  parse_qwen_window_layers(read, c);
  return c;
}

nlohmann::ordered_json write_qwen2(const DecoderConfig& c) {
  nlohmann::ordered_json object = write_decoder(c, "Qwen2ForCausalLM");
  write_qwen_window(c, object);
  write_qwen_window_layers(c, object);
  return object;
}

}  // namespace

Family qwen2_family() { return {.model_type = "qwen2", .parse = parse_qwen2, .write = write_qwen2}; }

}  // namespace octet::models
