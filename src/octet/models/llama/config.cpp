#include "octet/base/require.h"
#include "octet/models/decoder/config_json.h"
#include "octet/models/decoder/names.h"
#include "octet/models/llama/llama.h"

namespace octet::models {
namespace {

DecoderConfig parse(const nlohmann::json& object, const std::string& source) {
  const JsonReader read(object, source);
  const DecoderConfig c = parse_decoder(read, "llama", {.max_position = 2048});
  for (const char* key : {"attention_bias", "mlp_bias"}) {
    demand(!read.boolean(key, false), ExitCode::data, source, ": ", key,
           " = true is not supported: octet's linears have no bias");
  }
  demand(!read.has("sliding_window"), ExitCode::data, source, ": sliding_window = ", read.integer("sliding_window", 0),
         ": Llama has none; model_type = \"mistral\" has one");
  check(c, source);
  return c;
}

nlohmann::ordered_json write(const DecoderConfig& c) {
  nlohmann::ordered_json object = write_decoder(c, "LlamaForCausalLM");
  object["attention_bias"] = false;
  object["mlp_bias"] = false;
  return object;
}

}  // namespace

Family llama_family() {
  return {.model_type = "llama", .parse = parse, .write = write, .names = parameter_names};
}

}  // namespace octet::models
