#include <gtest/gtest.h>

#include <map>
#include <set>

#include "octet/models/decoder/names.h"
#include "octet/models/registry.h"
#include "support/tiny_model.h"

namespace octet::models {
namespace {

using testing::recipe_named;
using testing::tiny_config;

// Every row of every parameter has one name, and every name belongs to one place.
TEST(ParameterNames, CoverEveryParameterOnce) {
  for (const bool tied : {false, true}) {
    DecoderConfig config = tiny_config();
    config.tied_head = tied;
    Decoder model(config, recipe_named("bf16"));
    std::map<const parallel::Parameter*, std::int64_t> covered;
    std::set<std::string> names;
    for (const parallel::NameEntry& entry : names_of(model)) {
      EXPECT_TRUE(names.insert(entry.external).second) << entry.external;
      ASSERT_EQ(entry.rows.size(), 1u) << entry.external;
      const auto [begin, end] = entry.rows[0];
      EXPECT_EQ(begin, covered[entry.parameter]) << entry.external << ": parts stand in the order of their rows";
      covered[entry.parameter] = end;
      EXPECT_EQ(entry.shape[0], end - begin) << entry.external;
      EXPECT_EQ(entry.shape.rank(), entry.parameter->spec.shape.rank()) << entry.external;
    }
    for (const parallel::Parameter& p : model.parameters().parameters()) EXPECT_EQ(covered[&p], p.spec.shape[0]) << p.spec.name;
    EXPECT_EQ(names.count("lm_head.weight"), tied ? 0u : 1u);
    EXPECT_EQ(names.size(), tied ? 20u : 21u);  // nine for each layer, then embedding, norm and head
  }
}

TEST(ParameterNames, AreThoseOfTransformers) {
  Decoder model(tiny_config(), recipe_named("bf16"));
  std::map<std::string, Shape> shapes;
  for (const parallel::NameEntry& entry : names_of(model)) shapes[entry.external] = entry.shape;
  const std::map<std::string, Shape> expected = {
      {"model.embed_tokens.weight", {32, 32}},
      {"model.layers.1.input_layernorm.weight", {32}},
      {"model.layers.1.self_attn.q_proj.weight", {32, 32}},
      {"model.layers.1.self_attn.k_proj.weight", {16, 32}},
      {"model.layers.1.self_attn.v_proj.weight", {16, 32}},
      {"model.layers.1.self_attn.o_proj.weight", {32, 32}},
      {"model.layers.1.post_attention_layernorm.weight", {32}},
      {"model.layers.1.mlp.gate_proj.weight", {48, 32}},
      {"model.layers.1.mlp.up_proj.weight", {48, 32}},
      {"model.layers.1.mlp.down_proj.weight", {32, 48}},
      {"model.norm.weight", {32}},
      {"lm_head.weight", {32, 32}},
  };
  for (const auto& [name, shape] : expected) {
    ASSERT_TRUE(shapes.count(name)) << name;
    EXPECT_EQ(shapes[name], shape) << name;
  }
}

TEST(KindPattern, StandsForAllLayers) {
  const auto pattern = [](const DecoderConfig& config, const char* module) {
    const Decoder model(config, recipe_named("bf16"));
    return kind_pattern(model, module);
  };
  EXPECT_EQ(pattern(testing::tiny_gpt_neox_config(true), "gpt_neox.layers.12.mlp.dense_4h_to_h"),
            "gpt_neox.layers.*.mlp.dense_4h_to_h");
  EXPECT_EQ(pattern(testing::tiny_gpt_neo_config(), "transformer.h.1.mlp.c_fc"), "transformer.h.*.mlp.c_fc");
  EXPECT_EQ(pattern(tiny_config(), "model.layers.3.mlp.down_proj"), "model.layers.*.mlp.down_proj");
  EXPECT_EQ(pattern(tiny_config(), "lm_head"), "lm_head");
}

}  // namespace
}  // namespace octet::models
