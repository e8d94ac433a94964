#include "octet/base/require.h"
#include "octet/models/decoder/names.h"
#include "octet/models/qwen2/qwen2.h"

namespace octet::models {

void parse_qwen_window(const JsonReader& read, DecoderConfig& c) {
  if (!read.boolean("use_sliding_window", false) || read.has_null("sliding_window")) return;
  c.sliding_window = read.integer("sliding_window", 4096);
  demand(c.sliding_window > 0, ExitCode::data, read.source(), ": sliding_window = ", c.sliding_window, ": must be positive");
}

void parse_qwen_window_layers(const JsonReader& read, DecoderConfig& c) {
  if (c.sliding_window == 0) return;
  if (!read.has("layer_types")) {  // the first layers see all tokens
    const std::int64_t first = read.integer("max_window_layers", 28);
    for (std::int64_t layer = 0; layer < c.layers; ++layer) c.sees_all.push_back(layer < first);
    return;
  }
  const nlohmann::json& types = read.object()["layer_types"];
  demand(types.is_array(), ExitCode::data, read.source(), ": layer_types = ", shown(types), ": must be a list");
  for (const nlohmann::json& type : types) {
    demand(type == "full_attention" || type == "sliding_attention", ExitCode::data, read.source(), ": layer_types has ",
           shown(type), ": must be \"full_attention\" or \"sliding_attention\"");
    c.sees_all.push_back(type == "full_attention");
  }
}

void write_qwen_window(const DecoderConfig& c, nlohmann::ordered_json& object) {
  object["use_sliding_window"] = c.sliding_window > 0;
  write_sliding_window(c, object);
}

void write_qwen_window_layers(const DecoderConfig& c, nlohmann::ordered_json& object) {
  std::int64_t first = 0;
  while (first < c.layers && c.window(first) == 0) ++first;
  object["max_window_layers"] = first;
  if (c.sliding_window == 0) return;
  for (std::int64_t layer = 0; layer < c.layers; ++layer)
    object["layer_types"].push_back(c.window(layer) > 0 ? "sliding_attention" : "full_attention");
}

namespace {

DecoderConfig parse_qwen2(const nlohmann::json& object, const std::string& source) {
  const JsonReader read(object, source);
  DecoderConfig c = parse_decoder(read, "qwen2", {.kv_heads = 32, .max_position = 32768});
  c.qkv_bias = true;
  parse_qwen_window(read, c);
  parse_qwen_window_layers(read, c);
  check(c, source);
  return c;
}

nlohmann::ordered_json write_qwen2(const DecoderConfig& c) {
  nlohmann::ordered_json object = write_decoder(c, "Qwen2ForCausalLM");
  write_qwen_window(c, object);
  write_qwen_window_layers(c, object);
  return object;
}

}  // namespace

Family qwen2_family() { return {.model_type = "qwen2", .parse = parse_qwen2, .write = write_qwen2, .names = parameter_names}; }

}  // namespace octet::models
