#include <limits>

#include "octet/base/require.h"
#include "octet/models/decoder/names.h"
#include "octet/models/decoder/pre_norm_block.h"
#include "octet/models/llama/llama.h"

namespace octet::models {

namespace {

using nlohmann::json;

// Reads typed values of an object and says what is wrong with them.
class Reader {
 public:
  Reader(const json& object, const std::string& source) : object_(object), source_(source) {}

  bool has(const char* key) const {
    const auto it = object_.find(key);
    return it != object_.end() && !it->is_null();
  }
  std::int64_t integer(const char* key) const {
    demand(has(key), ExitCode::data, source_, ": no ", key);
    const json& value = object_[key];
    demand(value.is_number_integer() && (!value.is_number_unsigned() || value.get<std::uint64_t>() <= kMax), ExitCode::data, source_,
           ": ", key, " = ", value.dump(), ": must be a whole number");
    return value.get<std::int64_t>();
  }
  std::int64_t integer(const char* key, std::int64_t otherwise) const { return has(key) ? integer(key) : otherwise; }
  double number(const char* key) const {
    demand(has(key), ExitCode::data, source_, ": no ", key);
    demand(object_[key].is_number(), ExitCode::data, source_, ": ", key, " = ", object_[key].dump(), ": must be a number");
    return object_[key].get<double>();
  }
  double number(const char* key, double otherwise) const { return has(key) ? number(key) : otherwise; }
  bool boolean(const char* key, bool otherwise) const {
    if (!has(key)) return otherwise;
    demand(object_[key].is_boolean(), ExitCode::data, source_, ": ", key, " = ", object_[key].dump(), ": must be true or false");
    return object_[key].get<bool>();
  }
  std::string string(const char* key, const std::string& otherwise) const {
    if (!has(key)) return otherwise;
    demand(object_[key].is_string(), ExitCode::data, source_, ": ", key, " = ", object_[key].dump(), ": must be a string");
    return object_[key].get<std::string>();
  }

 private:
  static constexpr std::uint64_t kMax = std::numeric_limits<std::int64_t>::max();
  const json& object_;
  const std::string& source_;
};

std::optional<kernels::RopeScalingLlama3> parse_rope_scaling(const json& object, const char* key, const std::string& source) {
  const json& scaling = object[key];
  const std::string where = source + ": " + key;
  demand(scaling.is_object(), ExitCode::data, where, " = ", scaling.dump(), ": must be an object");
  const Reader read(scaling, where);
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
         ExitCode::data, where, " = ", scaling.dump(), ": must satisfy factor >= 1, "
         "0 < low_freq_factor < high_freq_factor and original_max_position_embeddings > 0");
  return result;
}

DecoderConfig parse(const json& object, const std::string& source) {
  const Reader read(object, source);
  DecoderConfig c;
  c.vocab = read.integer("vocab_size");
  c.dim = read.integer("hidden_size");
  c.ffn = read.integer("intermediate_size");
  c.layers = read.integer("num_hidden_layers");
  c.heads = read.integer("num_attention_heads");
  c.kv_heads = read.integer("num_key_value_heads", c.heads);
  demand(read.has("head_dim") || (c.heads > 0 && c.dim % c.heads == 0), ExitCode::data, source, ": hidden_size = ", c.dim,
         " is not a multiple of num_attention_heads = ", c.heads, ", and there is no head_dim");
  c.head_dim = read.has("head_dim") ? read.integer("head_dim") : c.dim / c.heads;
  c.max_position = read.integer("max_position_embeddings", 2048);
  c.norm_epsilon = read.number("rms_norm_eps", 1e-6);
  c.tied_head = read.boolean("tie_word_embeddings", false);
  c.init_std = read.number("initializer_range", 0.02);
  c.tokenizer = read.string("tokenizer", "");
  c.rope_theta = read.number("rope_theta", 10000.0);
  if (read.has("rope_scaling")) c.rope_scaling = parse_rope_scaling(object, "rope_scaling", source);
  // transformers 5 keeps theta and scaling in one object.
  if (read.has("rope_parameters")) {
    c.rope_scaling = parse_rope_scaling(object, "rope_parameters", source);
    c.rope_theta = Reader(object["rope_parameters"], source + ": rope_parameters").number("rope_theta", c.rope_theta);
  }
  const std::string activation = read.string("hidden_act", "silu");
  demand(activation == "silu", ExitCode::data, source, ": hidden_act = \"", activation, "\" is not supported (silu)");
  for (const char* key : {"attention_bias", "mlp_bias"}) {
    demand(!read.boolean(key, false), ExitCode::data, source, ": ", key, " = true is not supported: octet's linears have no bias");
  }
  check(c, source);
  return c;
}

nlohmann::ordered_json write(const DecoderConfig& c) {
  nlohmann::ordered_json object = {
      {"architectures", {"LlamaForCausalLM"}},
      {"model_type", "llama"},
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
      {"attention_bias", false},
      {"mlp_bias", false},
      {"initializer_range", c.init_std},
      {"torch_dtype", "bfloat16"},
  };
  if (c.rope_scaling) {
    object["rope_scaling"] = {{"rope_type", "llama3"},
                              {"factor", c.rope_scaling->factor},
                              {"low_freq_factor", c.rope_scaling->low_freq_factor},
                              {"high_freq_factor", c.rope_scaling->high_freq_factor},
                              {"original_max_position_embeddings", c.rope_scaling->original_max_position}};
  }
  if (!c.tokenizer.empty()) object["tokenizer"] = c.tokenizer;
  return object;
}

}  // namespace

Family llama_family() {
  return {.model_type = "llama", .make_block = make_pre_norm_block, .parse = parse, .write = write, .names = parameter_names};
}

}  // namespace octet::models
