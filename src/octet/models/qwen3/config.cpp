// Qwen3 (Yang et al., 2025), as transformers' Qwen3ForCausalLM has it: Llama, whose tensors' names it shares, with an RMSNorm on
// each head of Q and K, and heads whose width does not follow from the model's. Qwen3MoeForCausalLM has a mixture of many small
// experts in all layers or some.
#include "octet/base/require.h"
#include "octet/models/decoder/config_json.h"
#include "octet/models/families.h"

namespace octet::models {
namespace {

DecoderConfig parse_qwen3(const JsonReader& read, const JsonDefaults& defaults) {
  DecoderConfig c = parse_decoder(read, defaults);
  c.qk_norm = nn::QkNorm::head;
  c.qkv_bias = c.output_bias = read.boolean("attention_bias", false);
  parse_qwen_window(read, c);
  return c;
}

nlohmann::ordered_json write_qwen3(const DecoderConfig& c, const std::string& architecture) {
  nlohmann::ordered_json object = write_decoder(c, architecture);
  object["attention_bias"] = c.qkv_bias;
  write_qwen_window(c, object);
  return object;
}

DecoderConfig parse_dense(const JsonReader& read) {
  DecoderConfig c = parse_qwen3(read, {.kv_heads = 32, .head_dim = 128, .max_position = 32768});
  parse_qwen_window_layers(read, c);
  return c;
}

nlohmann::ordered_json write_dense(const DecoderConfig& c) {
  nlohmann::ordered_json object = write_qwen3(c, "Qwen3ForCausalLM");
  write_qwen_window_layers(c, object);
  return object;
}

// A layer has a mixture if decoder_sparse_step divides its number, counted from one, and mlp_only_layers does not name it.
std::vector<bool> dense_layers(const JsonReader& read, std::int64_t layers) {
  const std::int64_t every = read.integer("decoder_sparse_step", 1);
  demand(every > 0, ExitCode::data, read.source(), ": decoder_sparse_step = ", every, ": must be positive");
  std::vector<bool> dense(static_cast<std::size_t>(layers));
  for (std::int64_t i = 0; i < layers; ++i) dense[static_cast<std::size_t>(i)] = (i + 1) % every != 0;
  if (!read.has("mlp_only_layers")) return dense;
  const nlohmann::json& named = read.object()["mlp_only_layers"];
  demand(named.is_array(), ExitCode::data, read.source(), ": mlp_only_layers = ", shown(named), ": must be a list");
  for (const nlohmann::json& layer : named) {
    demand(layer.is_number_integer() && layer >= 0 && layer < layers, ExitCode::data, read.source(), ": mlp_only_layers has ",
           shown(layer), ": must be below num_hidden_layers = ", layers);
    dense[layer.get<std::size_t>()] = true;
  }
  return dense;
}

DecoderConfig parse_moe(const JsonReader& read) {
  DecoderConfig c = parse_qwen3(read, {.kv_heads = 4, .max_position = 32768});
  c.experts = read.integer("num_experts", read.integer("num_local_experts", 128));  // transformers 5 writes the latter
  c.experts_per_token = read.integer("num_experts_per_tok", 8);
  c.expert_ffn = read.integer("moe_intermediate_size", 768);
  c.router_normalise = read.boolean("norm_topk_prob", false);
  parse_router(read, c);
  demand(c.experts > 0, ExitCode::data, read.source(), ": num_experts = ", c.experts, ": must be positive");
  demand(c.expert_ffn > 0, ExitCode::data, read.source(), ": moe_intermediate_size = ", c.expert_ffn, ": must be positive");
  c.dense_layers = dense_layers(read, c.layers);
  return c;
}

nlohmann::ordered_json write_moe(const DecoderConfig& c) {
  nlohmann::ordered_json object = write_qwen3(c, "Qwen3MoeForCausalLM");
  object["num_experts"] = c.experts;
  object["num_experts_per_tok"] = c.experts_per_token;
  object["moe_intermediate_size"] = c.expert_ffn;
  object["norm_topk_prob"] = c.router_normalise;
  object["decoder_sparse_step"] = 1;
  object["mlp_only_layers"] = nlohmann::ordered_json::array();
  for (std::int64_t layer = 0; layer < c.layers; ++layer) {
    if (!c.is_mixture(layer)) object["mlp_only_layers"].push_back(layer);
  }
  write_router(c, object);
  return object;
}

}  // namespace

Family qwen3_family() { return {.model_type = "qwen3", .parse = parse_dense, .write = write_dense}; }

Family qwen3_moe_family() { return {.model_type = "qwen3_moe", .parse = parse_moe, .write = write_moe}; }

}  // namespace octet::models
