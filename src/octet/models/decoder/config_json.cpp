#include "octet/models/decoder/config_json.h"

#include <cmath>
#include <limits>
#include <map>

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
  std::string text = object_[key].get<std::string>();
  demand(text.find('\0') == std::string::npos, ExitCode::data, source_, ": ", key, " = ", shown(object_[key]),
         ": must have no NUL character");
  return text;
}

namespace {

kernels::RopeScalingLlama3 parse_llama3(const JsonReader& read) {
  kernels::RopeScalingLlama3 result;
  result.factor = read.number("factor");
  result.low_freq_factor = read.number("low_freq_factor");
  result.high_freq_factor = read.number("high_freq_factor");
  result.original_max_position = read.integer("original_max_position_embeddings");
  demand(result.factor >= 1 && result.low_freq_factor > 0 && result.high_freq_factor > result.low_freq_factor &&
             result.original_max_position > 0,
         ExitCode::data, read.source(), " = ", shown(read.object()),
         ": must satisfy factor >= 1, "
         "0 < low_freq_factor < high_freq_factor and original_max_position_embeddings > 0");
  return result;
}

kernels::RopeScalingYarn parse_yarn(const JsonReader& read, std::int64_t max_position) {
  kernels::RopeScalingYarn result;
  result.original_max_position = read.integer("original_max_position_embeddings", max_position);
  result.factor = read.number("factor", static_cast<double>(max_position) / static_cast<double>(result.original_max_position));
  result.beta_fast = read.number("beta_fast", 32.0);
  result.beta_slow = read.number("beta_slow", 1.0);
  result.truncate = read.boolean("truncate", true);
  const auto sharpened = [&](double by) { return result.factor <= 1 ? 1.0 : 0.1 * by * std::log(result.factor) + 1.0; };
  const double mscale = read.number("mscale", 0.0), of_all_dims = read.number("mscale_all_dim", 0.0);
  const double usual = mscale != 0 && of_all_dims != 0 ? sharpened(mscale) / sharpened(of_all_dims) : sharpened(1.0);
  result.attention_factor = read.number("attention_factor", usual);
  demand(result.factor >= 1 && result.original_max_position > 0 && result.beta_slow > 0 && result.beta_fast >= result.beta_slow &&
             result.attention_factor > 0,
         ExitCode::data, read.source(), " = ", shown(read.object()),
         ": must satisfy factor >= 1, 0 < beta_slow <= beta_fast, attention_factor > 0 and original_max_position_embeddings > 0");
  return result;
}

// Returns the scaling under `key`, which exists; none for type "default". `max_position` is the model's.
std::optional<kernels::RopeScaling> parse_rope_scaling(const JsonReader& parent, const char* key, std::int64_t max_position) {
  const json& scaling = parent.object()[key];
  const std::string where = parent.source() + ": " + key;
  demand(scaling.is_object(), ExitCode::data, where, " = ", shown(scaling), ": must be an object");
  const JsonReader read(scaling, where);
  for (const auto& [name, value] : scaling.items()) {
    demand(!value.is_object(), ExitCode::data, where, ": ", name, " = ", shown(value),
           ": a scaling for each type of layer is not supported, only one for all layers");
  }
  const std::string type = read.string("rope_type", read.string("type", "default"));
  if (type == "default") return std::nullopt;
  if (type == "llama3") return parse_llama3(read);
  if (type == "yarn") return parse_yarn(read, max_position);
  demand(type == "linear", ExitCode::data, where, ": type \"", type, "\" is not supported (default, linear, llama3, yarn)");
  const double factor = read.number("factor");
  demand(factor >= 1, ExitCode::data, where, ": factor = ", factor, ": must be at least 1");
  return kernels::RopeScalingLinear{factor};
}

}  // namespace

nlohmann::ordered_json write_rope_scaling(const kernels::RopeScaling& scaling) {
  if (const auto* const s = std::get_if<kernels::RopeScalingLinear>(&scaling)) {
    return {{"rope_type", "linear"}, {"factor", s->factor}};
  }
  if (const auto* const s = std::get_if<kernels::RopeScalingYarn>(&scaling)) {
    return {{"rope_type", "yarn"},
            {"factor", s->factor},
            {"original_max_position_embeddings", s->original_max_position},
            {"beta_fast", s->beta_fast},
            {"beta_slow", s->beta_slow},
            {"truncate", s->truncate},
            {"attention_factor", s->attention_factor}};
  }
  const auto& s = std::get<kernels::RopeScalingLlama3>(scaling);
  return {{"rope_type", "llama3"},
          {"factor", s.factor},
          {"low_freq_factor", s.low_freq_factor},
          {"high_freq_factor", s.high_freq_factor},
          {"original_max_position_embeddings", s.original_max_position}};
}

double rope_number(const JsonReader& read, const char* key, double otherwise) {
  for (const char* object : {"rope_scaling", "rope_parameters"}) {
    if (!read.has(object)) continue;
    const std::string where = read.source() + ": " + object;
    otherwise = JsonReader(read.object()[object], where).number(key, otherwise);
  }
  return otherwise;
}

void parse_rope(const JsonReader& read, DecoderConfig& c) {
  const auto written = [&] { return c.rope_scaling ? write_rope_scaling(*c.rope_scaling) : nlohmann::ordered_json(); };
  if (read.has("rope_scaling")) c.rope_scaling = parse_rope_scaling(read, "rope_scaling", c.max_position);
  if (read.has("rope_parameters")) {
    const nlohmann::ordered_json other = written();
    c.rope_scaling = parse_rope_scaling(read, "rope_parameters", c.max_position);
    if (read.has("rope_scaling") && other != written()) {
      fail(ExitCode::data, read.source(), ": rope_scaling = ", shown(read.object()["rope_scaling"]),
           " and rope_parameters = ", shown(read.object()["rope_parameters"]), " are different scalings: remove one");
    }
  }
  c.rope_theta = rope_number(read, "rope_theta", c.rope_theta);
}

void parse_rotary_share(const JsonReader& read, const char* key, double otherwise, DecoderConfig& c) {
  const double share = rope_number(read, "partial_rotary_factor", read.number(key, otherwise));
  demand(share > 0 && share <= 1, ExitCode::data, read.source(), ": ", key, " = ", share, ": must be above 0, and 1 at most");
  c.rotary_dim = static_cast<std::int64_t>(static_cast<double>(c.head_dim) * share);
  demand(c.rotary_dim > 0, ExitCode::data, read.source(), ": ", key, " = ", share, ": rotates nothing of heads of ", c.head_dim);
}

// Rounds up, because a quotient that is rounded down could be read back as one dim fewer.
double rotary_share(const DecoderConfig& c) {
  const auto head_dim = static_cast<double>(c.head_dim);
  double share = static_cast<double>(c.rotated_dims()) / head_dim;
  while (static_cast<std::int64_t>(share * head_dim) < c.rotated_dims()) share = std::nextafter(share, 2.0);
  return share;
}

void write_sliding_window(const DecoderConfig& c, nlohmann::ordered_json& object) {
  object["sliding_window"] = c.sliding_window > 0 ? nlohmann::ordered_json(c.sliding_window) : nlohmann::ordered_json();
}

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
  const json& types = read.object()["layer_types"];
  demand(types.is_array(), ExitCode::data, read.source(), ": layer_types = ", shown(types), ": must be a list");
  for (const json& type : types) {
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

void parse_router(const JsonReader& read, DecoderConfig& c) {
  c.router_balance = read.number("router_aux_loss_coef", 0.001);
  c.router_z = read.number("router_z_loss_coef", 0.0);
  if (read.has("router_bias_update_rate")) c.router_bias_rate = read.number("router_bias_update_rate");
  c.output_router_logits = read.boolean("output_router_logits", false);
}

void write_router(const DecoderConfig& c, nlohmann::ordered_json& object) {
  object["router_aux_loss_coef"] = c.router_balance;
  if (c.router_z != 0) object["router_z_loss_coef"] = c.router_z;
  if (c.router_bias_rate) object["router_bias_update_rate"] = *c.router_bias_rate;
  object["output_router_logits"] = c.output_router_logits;
}

kernels::Gelu parse_gelu(const JsonReader& read, const char* key, const std::string& otherwise) {
  static const std::map<std::string, kernels::Gelu> known = {{"gelu", kernels::Gelu::exact},
                                                             {"gelu_new", kernels::Gelu::tanh},
                                                             {"gelu_fast", kernels::Gelu::tanh},
                                                             {"gelu_pytorch_tanh", kernels::Gelu::tanh}};
  const std::string activation = read.string(key, otherwise);
  const auto gelu = known.find(activation);
  if (gelu != known.end()) return gelu->second;
  std::string list;
  for (const auto& [name, kind] : known) list += (list.empty() ? "" : ", ") + name;
  fail(ExitCode::data, read.source(), ": ", key, " = \"", activation, "\" is not supported (", list, ")");
}

const char* write_gelu(kernels::Gelu kind, const char* tanh) {
  switch (kind) {
    case kernels::Gelu::exact:
      return "gelu";
    case kernels::Gelu::tanh:
      return tanh;
  }
  fail(ExitCode::internal, "config.json has no name for GELU ", static_cast<int>(kind));
}

void refuse_dropout(const JsonReader& read, std::initializer_list<const char*> keys) {
  for (const char* key : keys) {
    demand(read.number(key, 0.0) == 0.0, ExitCode::data, read.source(), ": ", key, " = ", read.number(key, 0.0),
           " is not supported: octet trains without dropout (0)");
  }
}

DecoderConfig parse_decoder(const JsonReader& read, const JsonDefaults& defaults) {
  const std::string& source = read.source();
  DecoderConfig c;
  c.vocab = read.integer("vocab_size");
  c.dim = read.integer("hidden_size");
  c.ffn = read.integer("intermediate_size");
  c.layers = read.integer("num_hidden_layers");
  check_layers(c.layers, "num_hidden_layers", source);
  c.heads = read.integer("num_attention_heads");
  const bool as_heads = defaults.kv_heads == 0 || read.has_null("num_key_value_heads");
  c.kv_heads = read.integer("num_key_value_heads", as_heads ? c.heads : defaults.kv_heads);
  const bool has_head_dim = read.has("head_dim") || defaults.head_dim > 0;
  demand(has_head_dim || (c.heads > 0 && c.dim % c.heads == 0), ExitCode::data, source, ": hidden_size = ", c.dim,
         " is not a multiple of num_attention_heads = ", c.heads, ", and there is no head_dim");
  c.head_dim = has_head_dim ? read.integer("head_dim", defaults.head_dim) : c.dim / c.heads;
  c.max_position = read.integer("max_position_embeddings", defaults.max_position);
  c.norm_epsilon = read.number("rms_norm_eps", defaults.norm_epsilon);
  c.tied_head = read.boolean("tie_word_embeddings", false);
  c.init_std = read.number("initializer_range", 0.02);
  c.tokenizer = read.string("tokenizer", "");
  c.rope_theta = read.number("rope_theta", defaults.rope_theta);
  parse_rope(read, c);
  const double rotated = rope_number(read, "partial_rotary_factor", read.number("partial_rotary_factor", 1.0));
  demand(defaults.rotates_parts || rotated == 1.0, ExitCode::data, source, ": partial_rotary_factor = ", rotated,
         " is not supported: octet rotates whole heads (1)");
  const std::string activation = read.string("hidden_act", "silu");
  demand(activation == "silu", ExitCode::data, source, ": hidden_act = \"", activation, "\" is not supported (silu)");
  refuse_dropout(read, {"attention_dropout"});
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
