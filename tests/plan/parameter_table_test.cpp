#include "octet/plan/parameter_table.h"

#include <gtest/gtest.h>

#include "octet/base/require.h"
#include "support/tiny_model.h"

namespace octet::plan {
namespace {

using parallel::Copy;
using parallel::Gradients;
using parallel::Layout;
using parallel::Mesh;
using parallel::Place;
using parallel::Stages;
using parallel::Weights;

train::EngineOptions options_of(const std::string& recipe, const Layout& layout, int rank) {
  train::EngineOptions options = testing::tiny_options(recipe);
  options.model.head_dim = 16;
  options.model.ffn = 64;
  options.model.layers = 4;
  options.layout = layout;
  options.rank = rank;
  return options;
}

ParameterTable table_of(const train::EngineOptions& options) {
  const auto device = make_meta_device(DeviceKind::cuda);
  const parallel::Groups groups = parallel::silent_groups(options.layout.mesh, options.rank);
  train::Engine engine(options, *device, groups);
  return parameter_table(engine.model().parameters(), engine.model().units());
}

const ParameterKind& find(const ParameterTable& table, const std::string& name) {
  const auto found =
      std::find_if(table.kinds.begin(), table.kinds.end(), [&](const ParameterKind& kind) { return kind.name == name; });
  require(found != table.kinds.end(), "no ", name, " in\n", text_of(table));
  return *found;
}

// The plan is what the meta device has given out. The table computes the same bytes from places, dtypes and shapes.
void expect_bytes_of_plan(const train::EngineOptions& options) {
  const ParameterTable table = table_of(options);
  const train::MemoryPlan plan = train::measure(options, DeviceKind::cuda);
  std::array<std::size_t, kMemoryCategories> copies = {};
  std::size_t scales = 0;
  for (const ParameterKind& kind : table.kinds) {
    scales += kind.scale_bytes;
    std::size_t sum = kind.scale_bytes;
    for (std::size_t i = 0; i < parallel::kCopies; ++i) {
      copies[static_cast<std::size_t>(category_of(static_cast<Copy>(i), kind.copies[i].place))] += kind.bytes[i];
      sum += kind.bytes[i];
      EXPECT_EQ(kind.bytes[i] == 0, kind.copies[i].place == Place::absent) << kind.name << " " << name_of(static_cast<Copy>(i));
    }
    EXPECT_EQ(kind.total(), sum) << kind.name;
  }
  for (const MemoryCategory category : {MemoryCategory::weights, MemoryCategory::master_weights, MemoryCategory::moments,
                                        MemoryCategory::gradients, MemoryCategory::host}) {
    const ParameterBytes& bytes = table.bytes[static_cast<std::size_t>(category)];
    EXPECT_EQ(bytes.total(), plan.bytes[static_cast<std::size_t>(category)]) << name_of(category) << "\n" << text_of(table);
    EXPECT_EQ(bytes.copies, copies[static_cast<std::size_t>(category)]) << name_of(category);
  }
  std::size_t of_categories = 0;
  for (const ParameterBytes& bytes : table.bytes) of_categories += bytes.scales;
  EXPECT_EQ(of_categories, scales);
}

TEST(ParameterTable, HasTheBytesOfTheMemoryPlan) {
  const Layout layouts[] = {
      {},
      {.mesh = Mesh({2, 4, 1, 1})},
      {.mesh = Mesh({1, 3, 1, 1})},  // shards are padded, codes that a rank transposes are not
      {.mesh = Mesh({1, 4, 1, 1}), .weights = Weights::resharded, .gradients = Gradients::sharded, .reduce = DType::bf16},
      {.mesh = Mesh({2, 3, 1, 1}),
       .weights = Weights::resharded,
       .gradients = Gradients::sharded,
       .reduce = DType::bf16,
       .accumulates = false},
      {.mesh = Mesh({1, 2, 2, 1}), .weights = Weights::kept, .gradients = Gradients::sharded},
      {.mesh = Mesh({1, 1, 1, 2})},
      {.mesh = Mesh({1, 2, 1, 2}), .weights = Weights::resharded, .gradients = Gradients::whole, .reduce = DType::bf16},
      {.mesh = Mesh({1, 2, 1, 1}, 1, Stages{.count = 2}), .weights = Weights::resharded, .gradients = Gradients::sharded},
      {.mesh = Mesh({1, 1, 1, 1}, 1, Stages{.count = 2, .chunks = 2})}};
  for (const std::string& recipe : testing::all_recipes()) {
    for (const Layout& layout : layouts) {
      for (const int rank : {0, layout.mesh.ranks() - 1}) {
        SCOPED_TRACE(concat(recipe, ", layout ", &layout - layouts, ", rank ", rank));
        train::EngineOptions options = options_of(recipe, layout, rank);

        expect_bytes_of_plan(options);
        options.storage.offload_slot = std::size_t{1} << 16;
        expect_bytes_of_plan(options);
        options.storage.offload_slot = 0;
        options.storage.master_weights = false;
        options.storage.moments = DType::bf16;
        expect_bytes_of_plan(options);
        if (layout.mesh.size(parallel::Axis::tensor) > 1) continue;  // which would cut through groups of 128 elements
        options.storage.moments = DType::f8_e4m3;
        expect_bytes_of_plan(options);
        options.storage.offload_slot = std::size_t{1} << 16;
        expect_bytes_of_plan(options);
      }
    }
  }
}

TEST(ParameterTable, HasTheBytesOfExpertsOfThisRank) {
  for (const int expert : {1, 2, 4}) {
    const Layout layout{.mesh = Mesh({1, 4, 1, 1}, expert), .weights = Weights::resharded, .gradients = Gradients::sharded};
    train::EngineOptions options = options_of("fp8_delayed", layout, 1);
    options.model.family = "mixtral";
    options.model.experts = 4;
    options.model.experts_per_token = 2;
    SCOPED_TRACE(concat("experts on ", expert, " ranks"));
    expect_bytes_of_plan(options);
    const ParameterTable table = table_of(options);
    const char* held[] = {"", "0-3", "2-3", "", "1"};
    const ParameterKind& down = find(table, concat("model.layers.0-3.block_sparse_moe.experts.", held[expert], ".w2"));
    EXPECT_EQ(down.count, 4 * 4 / expert);
    EXPECT_EQ(down.shards, 4 / expert);
    EXPECT_EQ(down.copies[static_cast<std::size_t>(Copy::rowwise)].place, expert == 4 ? Place::whole : Place::slot);
    EXPECT_EQ(table.elsewhere, 4 * 2 * (4 - 4 / expert));
  }
}

TEST(ParameterTable, HasARowForEachKind) {
  const Layout layout{
      .mesh = Mesh({1, 2, 1, 1}, 1, Stages{.count = 2}), .weights = Weights::resharded, .gradients = Gradients::sharded};
  train::EngineOptions options = options_of("fp8_delayed", layout, 0);
  options.recipe = testing::recipe_named("fp8_delayed", {.skip = {"model.layers.1.mlp.*"}});
  const ParameterTable table = table_of(options);
  std::vector<std::string> names;
  for (const ParameterKind& kind : table.kinds) names.push_back(kind.name);
  // Stage 0 has the embedding and blocks 0 and 1, of which the second has a feed-forward layer in BF16.
  EXPECT_EQ(names, (std::vector<std::string>{"model.embed_tokens", "model.layers.0-1.input_layernorm",
                                             "model.layers.0-1.self_attn.q_proj.fused", "model.layers.0-1.self_attn.o_proj",
                                             "model.layers.0-1.post_attention_layernorm", "model.layers.0.mlp.gate_proj.fused",
                                             "model.layers.0.mlp.down_proj", "model.layers.1.mlp.gate_proj.fused",
                                             "model.layers.1.mlp.down_proj"}));
  EXPECT_EQ(table.elsewhere, 2 * 6 + 2);
  const std::string text = text_of(table);
  for (const char* part :
       {"slot E4M3", "shard F32", "No parameter has these copies: columnwise, row_order.", "Other ranks hold 14 parameters"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  }
  // A block has two norms of 32 elements, whose shards have room for kShardMultiple.
  const ParameterKind& norm = find(table, "model.layers.0-1.input_layernorm");
  EXPECT_EQ(norm.count, 2);
  EXPECT_EQ(norm.bytes[static_cast<std::size_t>(Copy::master)], 2u * 128 * sizeof(float));
}

}  // namespace
}  // namespace octet::plan
