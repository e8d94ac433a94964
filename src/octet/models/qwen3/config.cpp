#include "octet/models/decoder/names.h"
#include "octet/models/qwen2/qwen2.h"
#include "octet/models/qwen3/qwen3.h"

namespace octet::models {
namespace {

DecoderConfig parse(const nlohmann::json& object, const std::string& source) {
  const JsonReader read(object, source);
  DecoderConfig c = parse_decoder(read, "qwen3", {.kv_heads = 32, .head_dim = 128, .max_position = 32768});
  c.head_norm = true;
  c.qkv_bias = c.output_bias = read.boolean("attention_bias", false);
  parse_qwen_windows(read, c);
  check(c, source);
  return c;
}

nlohmann::ordered_json write(const DecoderConfig& c) {
  nlohmann::ordered_json object = write_decoder(c, "Qwen3ForCausalLM");
  object["attention_bias"] = c.qkv_bias;
  write_qwen_windows(c, object);
  return object;
}

}  // namespace

Family qwen3_family() {
  return {.model_type = "qwen3", .parse = parse, .write = write, .names = parameter_names};
}

}  // namespace octet::models
