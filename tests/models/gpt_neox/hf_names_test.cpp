#include <gtest/gtest.h>

#include <map>
#include <set>

#include "octet/models/registry.h"
#include "support/tiny_model.h"

namespace octet::models {
namespace {

using testing::recipe_named;
using testing::tiny_gpt_neox_config;

// Every row of every parameter has one name, and every name belongs to one place.
TEST(GptNeoxNames, CoverEveryParameterOnce) {
  for (const bool tied : {false, true}) {
    DecoderConfig config = tiny_gpt_neox_config(true);
    config.tied_head = tied;
    Decoder model(config, recipe_named("bf16"));
    std::map<const parallel::Parameter*, std::multiset<std::int64_t>> covered;
    std::set<std::string> names;
    for (const parallel::NameEntry& entry : names_of(model)) {
      EXPECT_TRUE(names.insert(entry.external).second) << entry.external;
      std::int64_t rows = 0;
      for (const auto& [begin, end] : entry.rows) {
        for (std::int64_t row = begin; row < end; ++row) covered[entry.parameter].insert(row);
        rows += end - begin;
      }
      EXPECT_EQ(entry.shape[0], rows) << entry.external;
    }
    for (const parallel::Parameter& p : model.parameters().parameters()) {
      EXPECT_EQ(covered[&p].size(), static_cast<std::size_t>(p.spec.shape[0])) << p.spec.name;
      EXPECT_EQ(std::set<std::int64_t>(covered[&p].begin(), covered[&p].end()).size(), covered[&p].size()) << p.spec.name;
    }
    EXPECT_EQ(names.count("embed_out.weight"), tied ? 0u : 1u);
    EXPECT_EQ(names.size(), tied ? 27u : 28u);  // twelve for each layer, then embedding, norm, its bias and head
  }
}

TEST(GptNeoxNames, AreThoseOfTransformers) {
  Decoder model(tiny_gpt_neox_config(true), recipe_named("bf16"));
  std::map<std::string, Shape> shapes;
  for (const parallel::NameEntry& entry : names_of(model)) shapes[entry.external] = entry.shape;
  const std::map<std::string, Shape> expected = {
      {"gpt_neox.embed_in.weight", {32, 32}},
      {"gpt_neox.layers.1.input_layernorm.weight", {32}},
      {"gpt_neox.layers.1.input_layernorm.bias", {32}},
      {"gpt_neox.layers.1.attention.query_key_value.weight", {96, 32}},
      {"gpt_neox.layers.1.attention.query_key_value.bias", {96}},
      {"gpt_neox.layers.1.attention.dense.weight", {32, 32}},
      {"gpt_neox.layers.1.attention.dense.bias", {32}},
      {"gpt_neox.layers.1.post_attention_layernorm.weight", {32}},
      {"gpt_neox.layers.1.post_attention_layernorm.bias", {32}},
      {"gpt_neox.layers.1.mlp.dense_h_to_4h.weight", {48, 32}},
      {"gpt_neox.layers.1.mlp.dense_h_to_4h.bias", {48}},
      {"gpt_neox.layers.1.mlp.dense_4h_to_h.weight", {32, 48}},
      {"gpt_neox.layers.1.mlp.dense_4h_to_h.bias", {32}},
      {"gpt_neox.final_layer_norm.weight", {32}},
      {"gpt_neox.final_layer_norm.bias", {32}},
      {"embed_out.weight", {32, 32}},
  };
  for (const auto& [name, shape] : expected) {
    ASSERT_TRUE(shapes.count(name)) << name;
    EXPECT_EQ(shapes[name], shape) << name;
  }
}

// There are four heads of 8 rows. The file has query, key and value of the first head, then those of the second. Octet has all
// queries first.
TEST(GptNeoxNames, TakeQueryKeyAndValueHeadByHead) {
  Decoder model(tiny_gpt_neox_config(true), recipe_named("bf16"));
  int found = 0;
  for (const parallel::NameEntry& entry : names_of(model)) {
    if (entry.external.find("query_key_value") == std::string::npos) continue;
    ++found;
    ASSERT_EQ(entry.rows.size(), 12u);
    const std::vector<std::int64_t> begins = {0, 32, 64, 8, 40, 72, 16, 48, 80, 24, 56, 88};
    for (std::size_t i = 0; i < begins.size(); ++i) {
      EXPECT_EQ(entry.rows[i].begin, begins[i]);
      EXPECT_EQ(entry.rows[i].end, begins[i] + 8);
    }
  }
  EXPECT_EQ(found, 4) << "weight and bias of two layers";
}

}  // namespace
}  // namespace octet::models
