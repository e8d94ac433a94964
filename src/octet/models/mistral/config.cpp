#include "octet/base/require.h"
#include "octet/models/decoder/config_json.h"
#include "octet/models/decoder/names.h"
#include "octet/models/mistral/mistral.h"

namespace octet::models {
namespace {

DecoderConfig parse_mistral(const nlohmann::json& object, const std::string& source) {
  const JsonReader read(object, source);
  DecoderConfig c = parse_decoder(read, "mistral", {.kv_heads = 8, .max_position = 131072});
  // Null is no window, and no word of it the one of version 0.1.
  if (!read.has_null("sliding_window")) {
    c.sliding_window = read.integer("sliding_window", 4096);
    demand(c.sliding_window > 0, ExitCode::data, source, ": sliding_window = ", c.sliding_window, ": must be positive, or null");
  }
  check(c, source);
  return c;
}

nlohmann::ordered_json write_mistral(const DecoderConfig& c) {
  nlohmann::ordered_json object = write_decoder(c, "MistralForCausalLM");
  write_sliding_window(c, object);
  return object;
}

}  // namespace

Family mistral_family() {
  return {.model_type = "mistral", .parse = parse_mistral, .write = write_mistral, .names = parameter_names};
}

}  // namespace octet::models
