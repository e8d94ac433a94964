#include <gtest/gtest.h>

#include "octet/base/file.h"
#include "octet/base/require.h"
#include "octet/models/decoder/config.h"
#include "octet/models/registry.h"
#include "octet/train/config.h"
#include "support/errors.h"
#include "support/folder.h"
#include "support/paths.h"

namespace octet::train {
namespace {

template <class F>
std::string refusal_of(F&& f) {
  return testing::error_if_any(ExitCode::config, f);
}

TEST(ModelConfig, KeysReplaceThoseOfAPreset) {
  Config c;
  c.model.config = "llama3.1-8b";
  c.model.num_hidden_layers = 2;
  const models::DecoderConfig model = decoder_config(c);
  EXPECT_EQ(model.layers, 2);
  EXPECT_EQ(model.dim, 4096);
  ASSERT_TRUE(model.rope_scaling);
  EXPECT_EQ(std::get<kernels::RopeScalingLlama3>(*model.rope_scaling).factor, 8.0);
}

// transformers 5 writes theta and scaling into rope_parameters, which must not hide the run's own.
TEST(ModelConfig, KeysReplaceThoseOfAFileOfTransformers5) {
  const testing::TemporaryFolder folder;
  write_file_atomically(folder / "config.json", R"({"model_type":"qwen3","vocab_size":96,"hidden_size":64,"intermediate_size":96,
    "num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":2,"max_position_embeddings":4096,
    "rope_parameters":{"rope_type":"default","rope_theta":5000.0}})");
  Config c;
  c.model.config = (folder / "config.json").string();
  EXPECT_EQ(decoder_config(c).rope_theta, 5000.0);
  c.model.rope_scaling = RopeScalingConfig{.rope_type = "yarn", .original_max_position_embeddings = 1024};
  EXPECT_EQ(decoder_config(c).rope_theta, 5000.0) << "stays";
  EXPECT_EQ(std::get<kernels::RopeScalingYarn>(decoder_config(c).rope_scaling.value()).factor, 4.0) << "the ratio of the lengths";
  c.model.rope_theta = 700.0;
  EXPECT_EQ(decoder_config(c).rope_theta, 700.0);
  c.model.rope_scaling = RopeScalingConfig{.rope_type = "linear"};
  EXPECT_THROW(decoder_config(c), Error) << "a factor of its own, not Llama's";
}

// A model directory's config.json with these members beside the sizes.
Config config_of(const testing::TemporaryFolder& folder, const std::string& members) {
  write_file_atomically(folder / "config.json", R"({"vocab_size":96,"hidden_size":64,"intermediate_size":96,
    "num_hidden_layers":4,"num_attention_heads":4,"num_key_value_heads":2,"max_position_embeddings":4096,)" +
                                                    members + "}");
  Config c;
  c.file = "run.toml";
  c.model.config = (folder / "config.json").string();
  return c;
}

TEST(ModelConfig, KeysOfRopeScalingReplaceThoseOfTheSameType) {
  const testing::TemporaryFolder folder;
  Config c = config_of(folder, R"("model_type":"llama","rope_scaling":{"type":"yarn","factor":4.0,"beta_fast":16.0,
    "original_max_position_embeddings":1024,"rope_theta":500.0})");
  c.model.rope_scaling = RopeScalingConfig{.factor = 8.0};
  const auto yarn = std::get<kernels::RopeScalingYarn>(decoder_config(c).rope_scaling.value());
  EXPECT_EQ(yarn.factor, 8.0);
  EXPECT_EQ(yarn.beta_fast, 16.0);
  EXPECT_EQ(yarn.original_max_position, 1024);
  EXPECT_EQ(decoder_config(c).rope_theta, 500.0);
  c.model.rope_scaling->rope_type = "yarn";
  EXPECT_EQ(std::get<kernels::RopeScalingYarn>(decoder_config(c).rope_scaling.value()).beta_fast, 16.0);
  c.model.rope_scaling->rope_type = "llama3";
  const auto llama3 = std::get<kernels::RopeScalingLlama3>(decoder_config(c).rope_scaling.value());
  EXPECT_EQ(llama3.original_max_position, 8192) << "nothing of another scaling";
  EXPECT_EQ(decoder_config(c).rope_theta, 500.0);
  c.model.rope_theta = 700.0;
  EXPECT_EQ(decoder_config(c).rope_theta, 700.0);

  c = config_of(folder, R"("model_type":"llama","rope_parameters":{"rope_type":"linear","factor":3.0,"rope_theta":500.0})");
  c.model.rope_scaling = RopeScalingConfig{.factor = 8.0};
  EXPECT_EQ(std::get<kernels::RopeScalingLinear>(decoder_config(c).rope_scaling.value()).factor, 8.0);
  c.model.rope_scaling->beta_fast = 3.0;
  EXPECT_EQ(refusal_of([&] { decoder_config(c); }), "run.toml: model.rope_scaling.beta_fast = 3.0: linear has no such key");

  c = config_of(folder, R"("model_type":"llama","rope_parameters":{"rope_type":"default","rope_theta":500.0})");
  c.model.rope_scaling = RopeScalingConfig{.factor = 4.0};
  EXPECT_EQ(std::get<kernels::RopeScalingLlama3>(decoder_config(c).rope_scaling.value()).factor, 4.0) << "there is no scaling";
  c = {};
  c.model.config = "llama3.2-1b";
  c.model.rope_scaling = RopeScalingConfig{.low_freq_factor = 2.0};
  const auto preset = std::get<kernels::RopeScalingLlama3>(decoder_config(c).rope_scaling.value());
  EXPECT_EQ(preset.low_freq_factor, 2.0);
  EXPECT_EQ(preset.factor, 32.0) << "the preset's";
}

// transformers writes layer_types beside max_window_layers, and null where there is no window.
TEST(ModelConfig, KeysOfAWindowReplaceAListOfLayers) {
  const testing::TemporaryFolder folder;
  const auto windows = [&](const Config& c) {
    const models::DecoderConfig model = decoder_config(c);
    std::vector<std::int64_t> result;
    for (std::int64_t layer = 0; layer < model.layers; ++layer) result.push_back(model.window(layer));
    return result;
  };
  using List = std::vector<std::int64_t>;
  for (const std::string family : {"qwen2", "qwen3"}) {
    const std::string type = R"("model_type":")" + family + R"(",)";
    Config c = config_of(folder, type + R"("use_sliding_window":true,"sliding_window":8,"max_window_layers":2,
      "layer_types":["full_attention","sliding_attention","full_attention","sliding_attention"])");
    c.model.use_sliding_window = true;
    EXPECT_EQ(windows(c), (List{0, 8, 0, 8})) << "changes nothing";
    c.model.num_hidden_layers = 3;
    EXPECT_EQ(windows(c), (List{0, 8, 0})) << "the first layers";
    c.model.num_hidden_layers = 5;
    EXPECT_THROW(decoder_config(c), Error);
    c.model.max_window_layers = 3;
    EXPECT_EQ(windows(c), (List{0, 0, 0, 8, 8}));

    c = config_of(folder, type + R"("use_sliding_window":false,"sliding_window":null,"max_window_layers":4,
      "layer_types":["full_attention","full_attention","full_attention","full_attention"])");
    c.model.use_sliding_window = true;
    EXPECT_EQ(refusal_of([&] { decoder_config(c); }),
              "run.toml: model.use_sliding_window = true: needs model.sliding_window, for config.json has null");
    c.model.sliding_window = 8;
    EXPECT_EQ(
        refusal_of([&] { decoder_config(c); }),
        "run.toml: model.use_sliding_window = true: needs model.max_window_layers below 4, the number of layers, for no layer "
        "has the window otherwise");
    c.model.max_window_layers = 1;
    EXPECT_EQ(windows(c), (List{0, 8, 8, 8}));
  }
}

TEST(ModelConfig, KeysThatWouldChangeNothingAreRefused) {
  const auto refusal = [](const std::string& toml) {
    return refusal_of([&] { decoder_config(parse_config("[model]\n" + toml, "run.toml")); });
  };
  EXPECT_EQ(refusal("config = \"qwen3-0.6b\"\nsliding_window = 1024\n"),
            "run.toml: model.sliding_window = 1024: needs model.use_sliding_window = true");
  EXPECT_EQ(refusal("config = \"qwen3-0.6b\"\nmax_window_layers = 4\n"),
            "run.toml: model.max_window_layers = 4: needs model.use_sliding_window = true");
  EXPECT_EQ(refusal("config = \"gpt-neo-1.3b\"\nrope_scaling = { factor = 2.0 }\n").substr(0, 29),
            "run.toml: model.rope_scaling ");
  EXPECT_EQ(refusal("config = \"llama3.1-8b\"\nrope_scaling = { rope_type = \"linear\", factor = 2.0, beta_fast = 3.0 }\n"),
            "run.toml: model.rope_scaling.beta_fast = 3.0: linear has no such key");
  EXPECT_EQ(decoder_config(parse_config("[model]\nconfig = \"qwen3-0.6b\"\nuse_sliding_window = true\nsliding_window = 0\n", "x"))
                .sliding_window,
            0)
      << "0 is no window";
}

// A null in config.json becomes 0.
TEST(ModelConfig, AWindowIsOfMistral) {
  Config c;
  c.model.config = "mistral-7b";
  EXPECT_EQ(decoder_config(c).family, "mistral");
  EXPECT_EQ(decoder_config(c).sliding_window, 0);
  c.model.sliding_window = 512;
  EXPECT_EQ(decoder_config(c).sliding_window, 512);
  c.model.config = "llama3.1-8b";
  EXPECT_EQ(refusal_of([&] { decoder_config(c); }),
            "model.config = llama3.1-8b: sliding_window = 512: Llama has none; model_type = \"mistral\" has one");
  c.model.sliding_window = 0;
  EXPECT_EQ(decoder_config(c).sliding_window, 0);
  c.model.model_type = "mistral";
  c.model.sliding_window.reset();
  EXPECT_EQ(decoder_config(c).sliding_window, 4096);
}

TEST(ModelConfig, AFamilyHasItsOwnKeys) {
  Config c;
  c.file = "run.toml";
  c.model.model_type = "gpt_neox";
  c.model.vocab_size = 256;
  c.model.hidden_size = 64;
  c.model.intermediate_size = 256;
  c.model.num_hidden_layers = 2;
  c.model.num_attention_heads = 2;
  c.model.tokenizer = "byte";
  c.model.hidden_act = "gelu_new";
  c.model.layer_norm_eps = 1e-3;
  c.model.rotary_pct = 0.5;
  c.model.rotary_emb_base = 700;
  c.model.use_parallel_residual = false;
  c.model.attention_bias = false;
  const models::DecoderConfig model = decoder_config(c);
  EXPECT_EQ(model.family, "gpt_neox");
  EXPECT_EQ(model.gelu, kernels::Gelu::tanh);
  EXPECT_EQ(model.norm_epsilon, 1e-3);
  EXPECT_EQ(model.rotary_dim, 16);
  EXPECT_EQ(model.rope_theta, 700);
  EXPECT_FALSE(model.parallel_residual);
  EXPECT_FALSE(model.qkv_bias);
  EXPECT_EQ(model.tokenizer, "byte");
  c.model.rms_norm_eps = 1e-5;
  EXPECT_EQ(refusal_of([&] { decoder_config(c); }), "run.toml: model.rms_norm_eps = 1e-05: gpt_neox has no such key");
  c.model.rms_norm_eps.reset();
  c.model.model_type = "llama";
  EXPECT_NE(refusal_of([&] { decoder_config(c); }).find("hidden_act = \"gelu_new\" is not supported (silu)"), std::string::npos);
  c.model.hidden_act.reset();
  EXPECT_EQ(refusal_of([&] { decoder_config(c); }), "run.toml: model.layer_norm_eps = 0.001: llama has no such key");
}

TEST(ModelConfig, ListsEveryFamily) {
  std::string help;
  const ModelConfig model;
  visit_fields(model, [&](const Field& field, const auto&) {
    if (field.name == "model_type") help = field.help;
  });
  for (const std::string& family : models::model_types()) EXPECT_NE(help.find(family), std::string::npos) << family;
}

TEST(ModelConfig, MistakesAreNamed) {
  Config c;
  c.file = "run.toml";
  c.model.config = "llama3.1-8";
  EXPECT_EQ(refusal_of([&] { decoder_config(c); }),
            "model.config = \"llama3.1-8\": no such preset (gpt-neo-1.3b, llama2-7b, llama3-70b, llama3.1-405b, llama3.1-8b, "
            "llama3.2-1b, mistral-7b, mixtral-8x22b, mixtral-8x7b, olmo2-7b, phi4-14b, pythia-1.4b, quality-380m, quickstart, "
            "qwen2.5-7b, "
            "qwen3-0.6b, qwen3-1.7b, qwen3-30b-a3b, qwen3-32b, qwen3-8b), and not a .toml or "
            ".json file (did you mean llama3.1-8b?)");
  c.model.config = "/tmp";
  EXPECT_EQ(refusal_of([&] { decoder_config(c); }), "model.config = \"/tmp\": this is a directory; use model.init_from");
  c.model.config = "none.toml";
  EXPECT_EQ(refusal_of([&] { decoder_config(c); }), "none.toml: No such file or directory");
  c.model.config = "";
  c.model.hidden_size = 64;
  EXPECT_EQ(refusal_of([&] { decoder_config(c); }), "run.toml: model: no vocab_size");
}

}  // namespace
}  // namespace octet::train
