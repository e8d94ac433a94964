#include "octet/models/decoder/config_json.h"

#include <limits>

#include "octet/base/require.h"

namespace octet::models {

using nlohmann::json;

bool JsonReader::has(const char* key) const {
  const auto it = object_.find(key);
  return it != object_.end() && !it->is_null();
}
bool JsonReader::has_null(const char* key) const {
  const auto it = object_.find(key);
  return it != object_.end() && it->is_null();
}
std::int64_t JsonReader::integer(const char* key) const {
  constexpr std::uint64_t kMax = std::numeric_limits<std::int64_t>::max();
  demand(has(key), ExitCode::data, source_, ": no ", key);
  const json& value = object_[key];
  demand(value.is_number_integer() && (!value.is_number_unsigned() || value.get<std::uint64_t>() <= kMax), ExitCode::data,
         source_, ": ", key, " = ", shown(value), ": must be a whole number");
  return value.get<std::int64_t>();
}
double JsonReader::number(const char* key) const {
  demand(has(key), ExitCode::data, source_, ": no ", key);
  demand(object_[key].is_number(), ExitCode::data, source_, ": ", key, " = ", shown(object_[key]), ": must be a number");
  return object_[key].get<double>();
}
bool JsonReader::boolean(const char* key, bool otherwise) const {
  if (!has(key)) return otherwise;
  demand(object_[key].is_boolean(), ExitCode::data, source_, ": ", key, " = ", shown(object_[key]), ": must be true or false");
  return object_[key].get<bool>();
}
std::string JsonReader::string(const char* key, const std::string& otherwise) const {
  if (!has(key)) return otherwise;
  demand(object_[key].is_string(), ExitCode::data, source_, ": ", key, " = ", shown(object_[key]), ": must be a string");
  return object_[key].get<std::string>();
}

std::optional<kernels::RopeScalingLlama3> parse_rope_scaling(const JsonReader& parent, const char* key) {
  const json& scaling = parent.object()[key];
  const std::string where = parent.source() + ": " + key;
  demand(scaling.is_object(), ExitCode::data, where, " = ", shown(scaling), ": must be an object");
  const JsonReader read(scaling, where);
  const std::string type = read.string("rope_type", read.string("type", "default"));
  if (type == "default") return std::nullopt;
  demand(type == "llama3", ExitCode::data, where, ": type \"", type, "\" is not supported (default, llama3)");
  kernels::RopeScalingLlama3 result;
  result.factor = read.number("factor");
  result.low_freq_factor = read.number("low_freq_factor");
  result.high_freq_factor = read.number("high_freq_factor");
  result.original_max_position = read.integer("original_max_position_embeddings");
  demand(result.factor >= 1 && result.low_freq_factor > 0 && result.high_freq_factor > result.low_freq_factor &&
             result.original_max_position > 0,
         ExitCode::data, where, " = ", shown(scaling),
         ": must satisfy factor >= 1, "
         "0 < low_freq_factor < high_freq_factor and original_max_position_embeddings > 0");
  return result;
}

nlohmann::ordered_json write_rope_scaling(const kernels::RopeScalingLlama3& scaling) {
  return {{"rope_type", "llama3"},
          {"factor", scaling.factor},
          {"low_freq_factor", scaling.low_freq_factor},
          {"high_freq_factor", scaling.high_freq_factor},
          {"original_max_position_embeddings", scaling.original_max_position}};
}

DecoderConfig parse_decoder(const JsonReader& read, const std::string& family, const JsonDefaults& defaults) {
  const std::string& source = read.source();
  DecoderConfig c;
  c.family = family;
  c.vocab = read.integer("vocab_size");
  c.dim = read.integer("hidden_size");
  c.ffn = read.integer("intermediate_size");
  c.layers = read.integer("num_hidden_layers");
  c.heads = read.integer("num_attention_heads");
  const bool as_heads = defaults.kv_heads == 0 || read.has_null("num_key_value_heads");
  c.kv_heads = read.integer("num_key_value_heads", as_heads ? c.heads : defaults.kv_heads);
  demand(read.has("head_dim") || (c.heads > 0 && c.dim % c.heads == 0), ExitCode::data, source, ": hidden_size = ", c.dim,
         " is not a multiple of num_attention_heads = ", c.heads, ", and there is no head_dim");
  c.head_dim = read.has("head_dim") ? read.integer("head_dim") : c.dim / c.heads;
  c.max_position = read.integer("max_position_embeddings", defaults.max_position);
  c.norm_epsilon = read.number("rms_norm_eps", defaults.norm_epsilon);
  c.tied_head = read.boolean("tie_word_embeddings", false);
  c.init_std = read.number("initializer_range", 0.02);
  c.tokenizer = read.string("tokenizer", "");
  c.rope_theta = read.number("rope_theta", defaults.rope_theta);
  if (read.has("rope_scaling")) c.rope_scaling = parse_rope_scaling(read, "rope_scaling");
  // transformers 5 keeps theta and scaling in one object.
  if (read.has("rope_parameters")) {
    c.rope_scaling = parse_rope_scaling(read, "rope_parameters");
    const std::string where = source + ": rope_parameters";
    c.rope_theta = JsonReader(read.object()["rope_parameters"], where).number("rope_theta", c.rope_theta);
  }
  const std::string activation = read.string("hidden_act", "silu");
  demand(activation == "silu", ExitCode::data, source, ": hidden_act = \"", activation, "\" is not supported (silu)");
  return c;
}

nlohmann::ordered_json write_decoder(const DecoderConfig& c, const std::string& architecture) {
  nlohmann::ordered_json object = {
      {"architectures", {architecture}},
      {"model_type", c.family},
      {"vocab_size", c.vocab},
      {"hidden_size", c.dim},
      {"intermediate_size", c.ffn},
      {"num_hidden_layers", c.layers},
      {"num_attention_heads", c.heads},
      {"num_key_value_heads", c.kv_heads},
      {"head_dim", c.head_dim},
      {"max_position_embeddings", c.max_position},
      {"rms_norm_eps", c.norm_epsilon},
      {"rope_theta", c.rope_theta},
      {"tie_word_embeddings", c.tied_head},
      {"hidden_act", "silu"},
      {"initializer_range", c.init_std},
      {"torch_dtype", "bfloat16"},
  };
  if (c.rope_scaling) object["rope_scaling"] = write_rope_scaling(*c.rope_scaling);
  if (!c.tokenizer.empty()) object["tokenizer"] = c.tokenizer;
  return object;
}

}  // namespace octet::models
