#include <cmath>
#include <fstream>
#include <limits>

#include "models/config_cases.h"

namespace octet::models {
namespace {

json tiny_llama() {
  return {{"model_type", "llama"},      {"vocab_size", 96},          {"hidden_size", 48},         {"intermediate_size", 80},
          {"num_hidden_layers", 2},     {"num_attention_heads", 6}};
}
json llama_with(const char* key, json value) { return models::with(tiny_llama(), key, std::move(value)); }

TEST(LlamaConfig, DefaultsAreThoseOfTransformers) {
  const DecoderConfig c = parse_config(tiny_llama(), "x");
  EXPECT_EQ(c.family, "llama");
  EXPECT_EQ(c.vocab, 96);
  EXPECT_EQ(c.dim, 48);
  EXPECT_EQ(c.ffn, 80);
  EXPECT_EQ(c.layers, 2);
  EXPECT_EQ(c.heads, 6);
  EXPECT_EQ(c.kv_heads, 6);
  EXPECT_EQ(c.head_dim, 8);
  EXPECT_EQ(c.max_position, 2048);
  EXPECT_EQ(c.rope_theta, 10000.0);
  EXPECT_EQ(c.norm_epsilon, 1e-6);
  EXPECT_EQ(c.init_std, 0.02);
  EXPECT_FALSE(c.tied_head);
  EXPECT_FALSE(c.rope_scaling);
  EXPECT_EQ(c.tokenizer, "");
  // A key with the value null counts as missing.
  json nulls = tiny_llama();
  for (const char* key : {"num_key_value_heads", "head_dim", "rope_scaling", "rope_parameters", "tie_word_embeddings", "attention_bias", "sliding_window"}) {
    nulls[key] = nullptr;
  }
  expect_equal(parse_config(nulls, "x"), c);
}

TEST(LlamaConfig, WhatIsWrittenIsReadBack) {
  DecoderConfig c;
  c.vocab = 128256;
  c.dim = 4096;
  c.ffn = 14336;
  c.layers = 32;
  c.heads = 32;
  c.kv_heads = 8;
  c.head_dim = 112;
  c.max_position = 131072;
  c.rope_theta = 500000.1;
  c.norm_epsilon = 1.0 / 3e5;
  c.init_std = 0.1 + 0.2;
  for (const bool full : {false, true}) {
    c.tied_head = full;
    c.tokenizer = full ? "byte" : "";
    if (full) {
      c.bos = 128000;
      c.eos = {128001, 128009};
      c.rope_scaling = kernels::RopeScalingLlama3{
          .factor = 32.0 / 3.0, .low_freq_factor = 1.1, .high_freq_factor = 4.2, .original_max_position = 8191};
      c.qkv_bias = c.output_bias = c.mlp_bias = true;
    }
    const json written = written_and_read_back(c);
    EXPECT_EQ(written["architectures"], json({"LlamaForCausalLM"}));
    EXPECT_EQ(written["attention_bias"], full);
    EXPECT_EQ(written["mlp_bias"], full);
    EXPECT_EQ(written.contains("eos_token_id"), true) << "transformers would take 2";
    EXPECT_EQ(written.contains("bos_token_id"), true);
    EXPECT_EQ(written.contains("pad_token_id"), true) << "transformers would take 32000 for Phi-3, and 1 for OLMo 2";
  }
}

TEST(LlamaConfig, TokensThatBeginAndEndATextAreOneSeveralOrUnknown) {
  const auto again = [](const DecoderConfig& c) { return json::parse(config_json(c, DType::bf16).dump()); };
  for (const json& eos : {json(2), json({128001, 128008, 128009}), json()}) {
    EXPECT_EQ(again(parse_config(llama_with("eos_token_id", eos), "x"))["eos_token_id"], eos);
  }
  EXPECT_EQ(parse_config(llama_with("eos_token_id", {7}), "x").eos, std::vector<std::int64_t>{7});
  EXPECT_EQ(again(parse_config(llama_with("bos_token_id", 1), "x"))["bos_token_id"], 1);
  EXPECT_TRUE(again(parse_config(tiny_llama(), "x"))["bos_token_id"].is_null());
  EXPECT_EQ(again(parse_config(llama_with("pad_token_id", 9), "x"))["pad_token_id"], 9);
  EXPECT_TRUE(again(parse_config(tiny_llama(), "x"))["pad_token_id"].is_null());
  EXPECT_NE(refusal(llama_with("eos_token_id", "</s>")), "");
  EXPECT_NE(refusal(llama_with("eos_token_id", {2, 1.5})), "");
  EXPECT_NE(refusal(llama_with("bos_token_id", {1, 2})), "");
}

kernels::RopeScalingLlama3 llama3_of(const DecoderConfig& c) {
  return std::get<kernels::RopeScalingLlama3>(c.rope_scaling.value());
}

TEST(LlamaConfig, ReadsRopeScalingWhereverTransformersPutIt) {
  const json scaling = {{"rope_type", "llama3"},          {"factor", 8.0}, {"low_freq_factor", 1.0}, {"high_freq_factor", 4.0},
                        {"original_max_position_embeddings", 8192}};
  EXPECT_EQ(llama3_of(parse_config(llama_with("rope_scaling", scaling), "x")).factor, 8.0);
  json old = scaling;
  old.erase("rope_type");
  old["type"] = "llama3";
  EXPECT_EQ(llama3_of(parse_config(llama_with("rope_scaling", old), "x")).original_max_position, 8192);
  // transformers 5 writes one object, which includes theta.
  json parameters = scaling;
  parameters["rope_theta"] = 500000.0;
  const DecoderConfig c = parse_config(llama_with("rope_parameters", parameters), "x");
  EXPECT_EQ(c.rope_theta, 500000.0);
  EXPECT_EQ(llama3_of(c).high_freq_factor, 4.0);
  EXPECT_EQ(parse_config(llama_with("rope_parameters", {{"rope_type", "default"}, {"rope_theta", 7.0}}), "x").rope_theta, 7.0);
  EXPECT_FALSE(parse_config(llama_with("rope_scaling", {{"rope_type", "default"}}), "x").rope_scaling);
  EXPECT_EQ(parse_config(llama_with("rope_scaling", parameters), "x").rope_theta, 500000.0);
  EXPECT_EQ(llama3_of(parse_config(with(llama_with("rope_scaling", scaling), "rope_parameters", parameters), "x")).factor, 8.0);
  const json linear = llama_with("rope_scaling", {{"type", "linear"}, {"factor", 2.0}});
  EXPECT_EQ(refusal(with(linear, "rope_parameters", {{"rope_type", "default"}})),
            "rope_scaling = {\"factor\":2.0,\"type\":\"linear\"} and rope_parameters = {\"rope_type\":\"default\"} are different "
            "scalings: remove one");

  for (const char* missing : {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}) {
    json incomplete = scaling;
    incomplete.erase(missing);
    EXPECT_EQ(refusal(llama_with("rope_scaling", incomplete)), concat("rope_scaling: no ", missing));
  }
  EXPECT_EQ(refusal(llama_with("rope_parameters", {{"rope_type", "dynamic"}})),
            "rope_parameters: type \"dynamic\" is not supported (default, linear, llama3, yarn)");
  EXPECT_EQ(refusal(llama_with("rope_scaling", 8)), "rope_scaling = 8: must be an object");
  EXPECT_EQ(refusal(llama_with("rope_parameters", "llama3")), "rope_parameters = \"llama3\": must be an object");
  // transformers writes so if layers of different types have different scalings.
  EXPECT_EQ(refusal(llama_with("rope_parameters", {{"full_attention", {{"rope_type", "linear"}, {"factor", 4.0}}}})),
            "rope_parameters: full_attention = {\"factor\":4.0,\"rope_type\":\"linear\"}: a scaling for each type of layer is not "
            "supported, only one for all layers");
  for (const json& partial : {llama_with("partial_rotary_factor", 0.5),
                              llama_with("rope_parameters", {{"rope_type", "default"}, {"partial_rotary_factor", 0.5}})}) {
    EXPECT_EQ(refusal(partial), "partial_rotary_factor = 0.5 is not supported: octet rotates whole heads (1)");
  }
  EXPECT_EQ(refusal(llama_with("partial_rotary_factor", 1)), "");
  EXPECT_EQ(refusal(llama_with("rope_scaling", {{"rope_type", 3}})), "rope_scaling: rope_type = 3: must be a string");
  for (const auto& [key, value] : std::vector<std::pair<const char*, json>>{
           {"factor", 0.5}, {"low_freq_factor", 0}, {"high_freq_factor", 1.0}, {"original_max_position_embeddings", -1}}) {
    json bad = scaling;
    bad[key] = value;
    EXPECT_NE(refusal(llama_with("rope_scaling", bad)).find("must satisfy factor >= 1"), std::string::npos) << key;
  }
}

TEST(LlamaConfig, ReadsAndWritesLinearAndYarn) {
  DecoderConfig c = parse_config(llama_with("rope_scaling", {{"type", "linear"}, {"factor", 2.5}}), "x");
  EXPECT_EQ(std::get<kernels::RopeScalingLinear>(*c.rope_scaling).factor, 2.5);
  written_and_read_back(c);
  EXPECT_EQ(refusal(llama_with("rope_scaling", {{"type", "linear"}, {"factor", 0.5}})),
            "rope_scaling: factor = 0.5: must be at least 1");

  json config = with(tiny_llama(), "max_position_embeddings", 4096);
  const auto yarn_of = [&](const json& scaling) {
    return std::get<kernels::RopeScalingYarn>(*parse_config(with(config, "rope_scaling", scaling), "x").rope_scaling);
  };
  const kernels::RopeScalingYarn usual = yarn_of({{"type", "yarn"}, {"factor", 4}});
  EXPECT_EQ(usual.original_max_position, 4096) << "the model's own, if the scaling names none";
  EXPECT_EQ(usual.attention_factor, 0.1 * std::log(4.0) + 1.0);
  EXPECT_EQ(yarn_of({{"type", "yarn"}, {"original_max_position_embeddings", 1024}}).factor, 4.0) << "the ratio of the lengths";
  EXPECT_EQ(yarn_of({{"type", "yarn"}, {"factor", 4}, {"mscale", 1.0}, {"mscale_all_dim", 1.0}}).attention_factor, 1.0);
  c.rope_scaling = kernels::RopeScalingYarn{.factor = 3.5,
                                            .original_max_position = 77,
                                            .beta_fast = 31.5,
                                            .beta_slow = 1.5,
                                            .truncate = false,
                                            .attention_factor = 1.25};
  written_and_read_back(c);
  EXPECT_NE(refusal(with(config, "rope_scaling", {{"type", "yarn"}, {"factor", 4}, {"beta_slow", 64}})), "");
}

TEST(LlamaConfig, RefusesWhatIsMissing) {
  for (const char* key : {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"}) {
    json config = tiny_llama();
    config.erase(key);
    EXPECT_EQ(refusal(config), concat("no ", key));
    config[key] = nullptr;
    EXPECT_EQ(refusal(config), concat("no ", key));
  }
  json config = tiny_llama();
  config.erase("model_type");
  EXPECT_EQ(refusal(config), "no model_type");
  EXPECT_EQ(refusal(llama_with("model_type", 3)), "no model_type");
  EXPECT_EQ(refusal(llama_with("model_type", "lama")),
            concat("model_type = \"lama\": not a family that octet knows (", joined(model_types()), ") (did you mean llama?)"));
  EXPECT_EQ(refusal(json::array()), "not a JSON object");
  EXPECT_EQ(refusal(json("llama")), "not a JSON object");
}

TEST(LlamaConfig, RefusesWrongTypes) {
  for (const char* key : {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
                          "num_key_value_heads", "head_dim", "max_position_embeddings"}) {
    EXPECT_EQ(refusal(llama_with(key, "12")), concat(key, " = \"12\": must be a whole number"));
    EXPECT_EQ(refusal(llama_with(key, 12.5)), concat(key, " = 12.5: must be a whole number"));
    EXPECT_EQ(refusal(llama_with(key, true)), concat(key, " = true: must be a whole number"));
    EXPECT_EQ(refusal(llama_with(key, {12})), concat(key, " = [12]: must be a whole number"));
    EXPECT_EQ(refusal(llama_with(key, std::uint64_t{1} << 63)), concat(key, " = 9223372036854775808: must be a whole number"));
  }
  for (const char* key : {"rms_norm_eps", "rope_theta", "initializer_range"}) {
    EXPECT_EQ(refusal(llama_with(key, "1e-5")), concat(key, " = \"1e-5\": must be a number"));
    EXPECT_EQ(refusal(llama_with(key, false)), concat(key, " = false: must be a number"));
  }
  EXPECT_EQ(refusal(llama_with("tie_word_embeddings", 1)), "tie_word_embeddings = 1: must be true or false");
  EXPECT_EQ(refusal(llama_with("attention_bias", "no")), "attention_bias = \"no\": must be true or false");
  EXPECT_EQ(refusal(llama_with("tokenizer", 256)), "tokenizer = 256: must be a string");
  EXPECT_EQ(refusal(llama_with("hidden_act", json::object())), "hidden_act = {}: must be a string");
}

TEST(LlamaConfig, RefusesWhatOctetDoesNotCompute) {
  EXPECT_EQ(refusal(llama_with("hidden_act", "gelu")), "hidden_act = \"gelu\" is not supported (silu)");
  EXPECT_EQ(refusal(llama_with("sliding_window", 4096)), "sliding_window = 4096: Llama has none; model_type = \"mistral\" has one");
  for (const char* family : {"llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "olmo2", "phi3"}) {
    json config = llama_with("num_key_value_heads", 2);
    config["model_type"] = family;
    config["sliding_window"] = nullptr;
    EXPECT_EQ(refusal(with(config, "attention_dropout", 0.1)),
              "attention_dropout = 0.1 is not supported: octet trains without dropout (0)")
        << family;
    for (const json& none : {json(0), json(0.0), json()})
      EXPECT_EQ(refusal(with(config, "attention_dropout", none)), "") << family;
  }
}

TEST(LlamaConfig, RefusesSizesThatMakeNoModel) {
  for (const char* key : {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
                          "num_key_value_heads", "head_dim", "max_position_embeddings"}) {
    for (const std::int64_t value : {std::int64_t{0}, std::int64_t{-1}, std::numeric_limits<std::int64_t>::min(),
                                     std::int64_t{1} << 31, std::numeric_limits<std::int64_t>::max()}) {
      json config = llama_with("head_dim", 8);  // so that the check of the quotient of two other keys does not fail first
      config[key] = value;
      EXPECT_EQ(refusal(config).rfind(concat(key, " = ", value, ": must be between 1 and "), 0), 0u) << refusal(config);
    }
  }
  EXPECT_EQ(refusal(llama_with("num_attention_heads", 5)),
            "hidden_size = 48 is not a multiple of num_attention_heads = 5, and there is no head_dim");
  EXPECT_NE(refusal(llama_with("num_attention_heads", 0)), "");
  EXPECT_EQ(refusal(llama_with("num_key_value_heads", 4)), "num_attention_heads = 6 is not a multiple of num_key_value_heads = 4");
  EXPECT_EQ(refusal(llama_with("head_dim", 7)), "head_dim = 7: must be even (rotary halves)");
  EXPECT_EQ(refusal(llama_with("rope_theta", 0)), "rope_theta = 0: must be positive");
  EXPECT_EQ(refusal(llama_with("rms_norm_eps", -1e-5)), "rms_norm_eps = -1e-05: must be positive");
  EXPECT_EQ(refusal(llama_with("initializer_range", -1)), "initializer_range = -1: must not be negative");
  EXPECT_EQ(refusal(llama_with("head_dim", 100)), "") << "head_dim need not be a quotient";
}

// With the largest sizes that the checks allow, nothing computed from them overflows.
TEST(LlamaConfig, TheLargestModelOverflowsNothing) {
  json config = tiny_llama();
  config.update({{"vocab_size", 1 << 24}, {"hidden_size", 1 << 20}, {"intermediate_size", 1 << 22}, {"num_hidden_layers", 1 << 13},
                 {"num_attention_heads", 1 << 12}, {"num_key_value_heads", 1 << 12}, {"head_dim", 1 << 12}});
  const DecoderConfig c = parse_config(config, "x");
  const double attention = std::ldexp(1.0, 20 + 12 + 14), mlp = 3 * std::ldexp(1.0, 42);
  const double expected = 8192 * (attention + mlp + 2 * 1048576.0) + 1048576.0 + std::ldexp(1.0, 45);
  EXPECT_EQ(static_cast<double>(c.parameters()), expected);
  EXPECT_LT(18 * expected, std::ldexp(1.0, 64)) << "bytes of master, value, gradient and moments";
}

TEST(LlamaConfig, RefusesFilesThatAreNoJson) {
  const testing::TemporaryFolder folder;
  const auto path = folder.path() / "config.json";
  const auto message = [&] { return testing::error_of(ExitCode::data, [&] { read_config(folder.path()); }); };
  EXPECT_NE(message().find(path.string()), std::string::npos) << "there is none: " << message();
  for (const char* text : {"", "{", "{\"model_type\": \"llama\",}", "{\"vocab_size\": 1e999}", "\xff\xfe", "nul"}) {
    std::ofstream(path) << text;
    EXPECT_EQ(message().rfind(path.string() + ": line 1, column ", 0), 0u) << message();
    EXPECT_NE(message().find(": not valid JSON: "), std::string::npos) << message();
  }
  std::ofstream(path) << std::string(200'000, '[');
  EXPECT_EQ(message(), path.string() + ": line 1, column 65: nested deeper than 64 levels");
}

// With a message for each id, half a million of them would take half an hour.
TEST(LlamaConfig, ReadsManyIdsInLinearTime) {
  json config = llama_with("eos_token_id", json::array());
  for (int id = 0; id < 500'000; ++id) config["eos_token_id"].push_back(id % 1000);
  EXPECT_EQ(parse_config(config, "config.json").eos.size(), 500'000u);
  config["eos_token_id"].push_back("x");
  const std::string message = testing::error_of(ExitCode::data, [&] { parse_config(config, "config.json"); });
  EXPECT_EQ(message.rfind("config.json: eos_token_id = [0,1,2,", 0), 0u);
  EXPECT_LT(message.size(), 300u);
}

}  // namespace
}  // namespace octet::models
