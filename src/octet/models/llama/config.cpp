// Llama 2, 3, 3.1 and 3.2 (Touvron et al., 2023; Dubey et al., 2024), as transformers' LlamaForCausalLM has them.
#include "octet/base/require.h"
#include "octet/models/decoder/config_json.h"
#include "octet/models/families.h"

namespace octet::models {
namespace {

DecoderConfig parse_llama(const JsonReader& read) {
  DecoderConfig c = parse_decoder(read, {.max_position = 2048});
  c.qkv_bias = c.output_bias = read.boolean("attention_bias", false);
  c.mlp_bias = read.boolean("mlp_bias", false);
  demand(!read.has("sliding_window"), ExitCode::data, read.source(), ": sliding_window = ", read.integer("sliding_window", 0),
         ": Llama has none; model_type = \"mistral\" has one");
  return c;
}

nlohmann::ordered_json write_llama(const DecoderConfig& c) {
  nlohmann::ordered_json object = write_decoder(c, "LlamaForCausalLM");
  object["attention_bias"] = c.qkv_bias;
  object["mlp_bias"] = c.mlp_bias;
  return object;
}

}  // namespace

Family llama_family() { return {.model_type = "llama", .parse = parse_llama, .write = write_llama}; }

}  // namespace octet::models
