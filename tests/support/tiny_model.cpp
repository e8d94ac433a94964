#include "support/tiny_model.h"

namespace octet::testing {

models::DecoderConfig tiny_config() {
  models::DecoderConfig config;
  config.vocab = 32;
  config.dim = 32;
  config.ffn = 48;
  config.layers = 2;
  config.heads = 4;
  config.kv_heads = 2;
  config.head_dim = 8;
  config.max_position = 64;
  config.init_std = 0.2;  // large enough that every part of the model affects the loss
  return config;
}

models::DecoderConfig tiny_gpt_neox_config(bool parallel_residual) {
  models::DecoderConfig config = tiny_config();
  config.family = "gpt_neox";
  config.kv_heads = config.heads;
  config.rotary_dim = parallel_residual ? 2 : config.head_dim;
  config.norm = nn::NormKind::layer;
  config.gelu = parallel_residual ? kernels::Gelu::exact : kernels::Gelu::tanh;
  config.qkv_bias = config.output_bias = config.mlp_bias = true;
  config.parallel_residual = parallel_residual;
  return config;
}

models::DecoderConfig tiny_qwen3_config() {
  models::DecoderConfig config = tiny_config();
  config.family = "qwen3";
  config.head_dim = 12;
  config.qk_norm = nn::QkNorm::head;
  config.qkv_bias = config.output_bias = true;
  config.sliding_window = 7;
  config.sees_all = {false, true};
  return config;
}

models::DecoderConfig tiny_qwen3_moe_config() {
  models::DecoderConfig config = tiny_qwen3_config();
  config.family = "qwen3_moe";
  config.experts = 4;
  config.experts_per_token = 2;
  config.expert_ffn = 16;
  return config;
}

models::DecoderConfig tiny_olmo2_config() {
  models::DecoderConfig config = tiny_config();
  config.family = "olmo2";
  config.qk_norm = nn::QkNorm::whole;
  return config;
}

models::DecoderConfig tiny_phi3_config() {
  models::DecoderConfig config = tiny_config();
  config.family = "phi3";
  // This block computes what Llama's does. EveryRecipe's bounds hold for its roundings in FP8 at most sizes, but not at all.
  config.rotary_dim = 6;
  config.sliding_window = 5;
  return config;
}

models::DecoderConfig tiny_gpt_neo_config() {
  models::DecoderConfig config = tiny_gpt_neox_config(false);
  config.family = "gpt_neo";
  config.rotary_dim = 0;
  config.learned_positions = true;
  config.attention_scale = 1.0;
  config.sliding_window = 7;
  config.sees_all = {true, false};
  config.qkv_bias = false;
  config.tied_head = true;
  return config;
}

std::vector<NamedModel> tiny_models() {
  std::vector<NamedModel> result = {{"Untied", tiny_config()},
                                    {"Tied", tiny_config()},
                                    {"GptNeoxParallel", tiny_gpt_neox_config(true)},
                                    {"GptNeoxSequential", tiny_gpt_neox_config(false)},
                                    {"GptNeoxTied", tiny_gpt_neox_config(true)},
                                    {"Qwen3", tiny_qwen3_config()},
                                    {"LlamaWithBiases", tiny_config()},
                                    {"Qwen3Moe", tiny_qwen3_moe_config()},
                                    {"GptNeo", tiny_gpt_neo_config()},
                                    {"Olmo2", tiny_olmo2_config()},
                                    {"Phi3", tiny_phi3_config()}};
  result[1].config.tied_head = result[4].config.tied_head = true;
  result[4].config.qkv_bias = result[4].config.output_bias = false;
  models::DecoderConfig& moe = result[7].config;
  // All experts are chosen, because a choice that changes has no derivative. The weights then add up to one in any case: those
  // that do not are in tests/kernels/router_test.cpp and in the goldens.
  moe.experts_per_token = 4;
  moe.router_normalise = false;
  moe.dense_layers = {true, false};
  result[6].config.qkv_bias = result[6].config.output_bias = result[6].config.mlp_bias = true;
  return result;
}

Recipe recipe_named(const std::string& name, const recipes::Options& options) {
  if (name.starts_with("fp8_delayed_attention")) {
    recipes::Options with_attention = options;
    with_attention.attention = name.ends_with("_forward") ? "fp8_forward" : "fp8";
    return recipes::make_recipe("fp8_delayed", with_attention);
  }
  if (name != "fp64") return recipes::make_recipe(name, options);
  Recipe recipe;
  recipe.name = name;
  recipe.compute = Compute::fp64;
  return recipe;
}

train::EngineOptions tiny_options(const std::string& recipe) {
  train::EngineOptions options;
  options.model = tiny_config();
  options.recipe = recipe_named(recipe);
  options.seq_len = 24;
  options.micro_batch_size = 2;
  return options;
}

std::unique_ptr<train::Engine> make_engine(const train::EngineOptions& options, std::uint64_t seed, DeviceKind device) {
  auto engine = std::make_unique<train::Engine>(options, device);
  engine->initialise(seed);
  return engine;
}

train::EngineOptions adapted(train::EngineOptions options, std::vector<std::string> targets) {
  options.adapters = {.rank = 4, .alpha = 3, .targets = std::move(targets)};
  return options;
}

void randomise_b(train::Engine& engine) {
  for (parallel::Parameter& p : engine.model().parameters().parameters()) {
    if (!p.spec.name.ends_with(".lora_B.weight")) continue;
    p.spec.init_std = 0.3;
    engine.model().parameters().initialise(engine.stream(), p, 5);
    p.spec.init_std = 0.0;
  }
  engine.refresh();
}

Tokens random_tokens(std::int64_t count, std::int64_t vocab, std::uint32_t subject) {
  const Rng rng(99, RngStream::test, subject);
  Tokens result;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto words = rng.words(static_cast<std::uint64_t>(i));
    result.tokens.push_back(static_cast<std::int32_t>(words[0] % static_cast<std::uint32_t>(vocab)));
    result.targets.push_back(words[2] % 11 == 0 ? -100 : static_cast<std::int32_t>(words[1] % static_cast<std::uint32_t>(vocab)));
  }
  return result;
}

std::vector<std::int32_t> random_document_starts(std::int64_t count, std::int64_t seq_len, std::uint32_t subject) {
  const Rng rng(98, RngStream::test, subject);
  std::vector<std::int32_t> starts;
  std::int64_t next = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    if (i % seq_len != 0 && i != next) continue;
    starts.push_back(static_cast<std::int32_t>(i));
    next = i + 1 + static_cast<std::int64_t>(rng.words(static_cast<std::uint64_t>(i))[0] % 15);
  }
  return starts;
}

std::vector<std::uint8_t> bytes_of_tensor(const Tensor& tensor) {
  return {tensor.as_bytes(), tensor.as_bytes() + tensor.bytes()};
}

}  // namespace octet::testing
