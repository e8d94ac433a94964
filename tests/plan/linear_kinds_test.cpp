#include "octet/plan/linear_kinds.h"

#include <gtest/gtest.h>

#include "support/tiny_model.h"

namespace octet::plan {
namespace {

using octet::testing::recipe_named;
using octet::testing::tiny_config;

TEST(LinearKinds, AreTheFusedLinearsOfABlockAndTheHead) {
  models::Decoder model(tiny_config(), recipe_named("bf16"));
  const std::vector<LinearKind> kinds = linear_kinds(model);
  ASSERT_EQ(kinds.size(), 5u);
  // D is 32, F is 48, V is 32. There are 4 heads, 2 key/value heads of 8 dims, and 2 layers.
  const auto expect = [&](std::size_t i, const char* name, const char* pattern, std::int64_t out, std::int64_t in, int layers) {
    EXPECT_EQ(kinds[i].name, name);
    EXPECT_EQ(kinds[i].pattern, pattern);
    EXPECT_EQ(kinds[i].out, out) << name;
    EXPECT_EQ(kinds[i].in, in) << name;
    EXPECT_EQ(kinds[i].layers, layers) << name;
  };
  expect(0, "qkv", "model.layers.*.self_attn.q_proj.fused", 64, 32, 2);
  expect(1, "o", "model.layers.*.self_attn.o_proj", 32, 32, 2);
  expect(2, "gate_up", "model.layers.*.mlp.gate_proj.fused", 96, 32, 2);
  expect(3, "down", "model.layers.*.mlp.down_proj", 32, 48, 2);
  expect(4, "head", "lm_head", 32, 32, 1);
  for (const LinearKind& kind : kinds) EXPECT_TRUE(kind.quantisable) << kind.name;
  models::DecoderConfig odd = tiny_config();
  odd.vocab = 33;
  models::Decoder other(odd, recipe_named("bf16"));
  EXPECT_FALSE(linear_kinds(other)[4].quantisable);
}

TEST(LinearKinds, KnowEveryFamily) {
  for (const bool parallel : {true, false}) {
    models::Decoder model(octet::testing::tiny_gpt_neox_config(parallel), recipe_named("bf16"));
    const std::vector<LinearKind> kinds = linear_kinds(model);
    ASSERT_EQ(kinds.size(), 5u);
    const char* const names[] = {"qkv", "o", "up", "down", "head"};
    for (std::size_t i = 0; i < kinds.size(); ++i) {
      EXPECT_EQ(kinds[i].name, names[i]);
      EXPECT_EQ(kinds[i].bias, i < 4) << names[i];
      EXPECT_EQ(kinds[i].layers, i < 4 ? 2 : 1) << names[i];
    }
    EXPECT_EQ(kinds[0].pattern, "gpt_neox.layers.*.attention.query_key_value");
    EXPECT_EQ(kinds[4].pattern, "embed_out");
    EXPECT_EQ(kinds[1].g, parallel ? Producer::none : Producer::norm_backward) << "two linears have one gradient";
    EXPECT_EQ(kinds[3].g, Producer::norm_backward);
  }
}

// A micro-batch casts each operand that has no producer, and the output of attention once more, for wgrad.
TEST(LinearKinds, SayWhichOperandsAStepCasts) {
  for (const auto& [name, config] : octet::testing::tiny_models()) {
    train::EngineOptions options = octet::testing::tiny_options("fp8_delayed");
    options.model = config;
    const auto device = make_meta_device(DeviceKind::cuda);
    const parallel::Groups groups = parallel::silent_groups(options.layout.mesh, 0);
    train::Engine engine(options, *device, groups);
    const octet::testing::Tokens tokens = octet::testing::random_tokens(options.seq_len * options.micro_batch_size, config.vocab);
    engine.begin_step();
    engine.stream().start_profile();
    engine.forward_backward(tokens.batch(), nullptr);
    std::int64_t casts = 0, expected = 0;
    for (const OpTime& op : engine.stream().take_profile()) casts += std::string_view(op.op) == "quantize" ? op.calls : 0;
    for (const LinearKind& kind : linear_kinds(engine.model())) {
      if (kind.name == "head") continue;  // in BF16
      // The gradient of a bias is a sum of the values of G, so no producer writes codes instead of them.
      const bool sums_values = kind.bias && kind.cut == parallel::Cut::rows;
      expected += kind.layers * ((kind.x == Producer::none) + (kind.g == Producer::none || sums_values) + (kind.name == "o"));
    }
    EXPECT_EQ(casts, expected) << name;
  }
}

// The first layer is dense.
TEST(LinearKinds, TheExpertsOfALayerAreOneLinear) {
  models::DecoderConfig config = octet::testing::tiny_qwen3_moe_config();
  config.layers = 3;
  config.dense_layers = {true, false, false};
  models::Decoder model(config, recipe_named("fp8_delayed", {.skip = {"model.layers.1.mlp.experts.*.down_proj"}}));
  const std::vector<LinearKind> kinds = linear_kinds(model);
  const char* const names[] = {"qkv", "o", "gate_up", "down", "experts.gate_up", "experts.down", "head"};
  ASSERT_EQ(kinds.size(), std::size(names));
  for (std::size_t i = 0; i < kinds.size(); ++i) EXPECT_EQ(kinds[i].name, names[i]);
  EXPECT_EQ(kinds[4].pattern, "model.layers.*.mlp.experts.*.gate_proj.fused");
  EXPECT_EQ(kinds[5].pattern, "model.layers.*.mlp.experts.*.down_proj");
  EXPECT_EQ(kinds[4].out, 32);
  EXPECT_EQ(kinds[4].in, config.dim);
  for (const std::size_t i : {4, 5}) {
    EXPECT_EQ(kinds[i].experts, 4);
    EXPECT_EQ(kinds[i].layers, 2);
  }
  EXPECT_EQ(kinds[2].experts, 0);
  using Counts = std::vector<std::int64_t>;
  EXPECT_EQ(fp8_layers(model, kinds), (Counts{3, 3, 1, 1, 2, 1, 0}));
  EXPECT_EQ(fp8_layers(model, kinds, {"model.layers.2.mlp.experts.3.gate_proj.fused"}), (Counts{3, 3, 1, 1, 1, 1, 0}))
      << "the experts of a layer have one precision";
}

TEST(LinearKinds, CountWhatIsInFp8) {
  const auto counts = [](const recipes::Options& options) {
    models::Decoder model(tiny_config(), recipe_named("fp8_block", options));
    return fp8_layers(model, linear_kinds(model));
  };
  using Counts = std::vector<std::int64_t>;
  EXPECT_EQ(counts({}), (Counts{2, 2, 2, 2, 0}));
  EXPECT_EQ(counts({.head = "recipe", .skip = {"model.layers.1.mlp.*"}}), (Counts{2, 2, 1, 1, 1}));
  models::Decoder model(tiny_config(), recipe_named("fp8_block", {.skip = {"model.layers.1.mlp.*"}}));
  EXPECT_EQ(
      fp8_layers(model, linear_kinds(model),
                 {"model.layers.0.mlp.down_proj", "model.layers.1.mlp.down_proj", "model.layers.1.self_attn.o_proj", "lm_head"}),
      (Counts{2, 1, 1, 0, 0}));
  // precision.skip accepts the patterns of the kinds.
  EXPECT_EQ(counts({.skip = {"model.layers.*.self_attn.q_proj.fused", "lm_head"}}), (Counts{0, 2, 2, 2, 0}));
}

}  // namespace
}  // namespace octet::plan
