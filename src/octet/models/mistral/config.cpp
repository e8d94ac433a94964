// Mistral 7B (Jiang et al., 2023), as transformers' MistralForCausalLM has it: Llama, whose tensors' names it shares, with a
// sliding window. Version 0.1 has one of 4096 tokens, later ones none.
#include "octet/base/require.h"
#include "octet/models/decoder/config_json.h"
#include "octet/models/families.h"

namespace octet::models {
namespace {

DecoderConfig parse_mistral(const JsonReader& read) {
  DecoderConfig c = parse_decoder(read, {.kv_heads = 8, .max_position = 131072});
  // A null means no window. If the key is absent, the window is version 0.1's, 4,096 tokens.
  if (!read.has_null("sliding_window")) {
    c.sliding_window = read.integer("sliding_window", 4096);
    demand(c.sliding_window > 0, ExitCode::data, read.source(), ": sliding_window = ", c.sliding_window,
           ": must be positive, or null");
  }
  return c;
}

nlohmann::ordered_json write_mistral(const DecoderConfig& c) {
  nlohmann::ordered_json object = write_decoder(c, "MistralForCausalLM");
  write_sliding_window(c, object);
  return object;
}

}  // namespace

Family mistral_family() { return {.model_type = "mistral", .parse = parse_mistral, .write = write_mistral}; }

}  // namespace octet::models
