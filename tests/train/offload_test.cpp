// Optimizer states in host memory change where a step computes, and nothing that it computes.
#include <gtest/gtest.h>

#include "support/any_order.h"
#include "train/meshes.h"

namespace octet::testing {
namespace {

class OffloadTest : public MeshTest {
 protected:
  // A few kilobytes hold only a part of some parameters' states, and several other parameters.
  static train::EngineOptions offloaded(train::EngineOptions options) {
    options.storage.offload_slot = 8192;
    return options;
  }
  static std::size_t host_bytes(const train::EngineOptions& options, const Layout& layout) {
    train::EngineOptions planned = options;
    planned.layout = layout;
    return train::measure(planned, DeviceKind::cpu).host();
  }
};

const std::vector<Layout> kOffloaded = {
    kAlone,
    {.mesh = Mesh({2, 1, 1, 1})},
    {.mesh = Mesh({1, 2, 1, 1})},
    {.mesh = Mesh({1, 4, 1, 1}), .weights = Weights::resharded, .gradients = Gradients::sharded},
    {.mesh = Mesh({2, 2, 1, 1}), .weights = Weights::resharded, .gradients = Gradients::sharded},
    {.mesh = Mesh({1, 1, 1, 2})},
    {.mesh = Mesh({1, 2, 2, 1}), .weights = Weights::kept, .gradients = Gradients::sharded}};

// The tensor axis would cut through groups of moments in FP8, because the model is small.
TEST_F(OffloadTest, GivesTheSameBitsWithMomentsInFp8) {
  train::EngineOptions options = tensor_options("fp8_delayed");
  options.storage.moments = DType::f8_e4m3;
  for (const bool master : {true, false}) {
    options.storage.master_weights = master;
    for (const Layout& layout : kOffloaded) {
      if (layout.mesh.size(Axis::tensor) > 1) continue;
      SCOPED_TRACE(concat(master ? "masters, " : "", text(layout)));
      const Steps steps{.count = 2, .micro_batches = layout.mesh.data_coordinates()};
      expect_same_bits(run_mesh(offloaded(options), layout, steps), run_mesh(options, layout, steps));
    }
  }
}

// With master weights, moments in two types and without master weights, whose rounding is stochastic.
TEST_F(OffloadTest, GivesTheSameBits) {
  for (const std::string recipe : {"bf16", "fp8_delayed", "fp8_current", "fp8_rowwise", "fp8_block", "mxfp8"}) {
    for (const bool narrow : {false, true}) {
      train::EngineOptions options = tensor_options(recipe);
      options.model.tied_head = recipe == "fp8_current";
      options.storage.master_weights = !narrow;
      if (narrow) options.storage.moments = DType::bf16;
      for (const Layout& layout : kOffloaded) {
        SCOPED_TRACE(concat(recipe, narrow ? ", BF16 states, " : ", ", text(layout)));
        const Steps steps{.count = 2, .micro_batches = layout.mesh.data_coordinates()};
        expect_same_bits(run_mesh(offloaded(options), layout, steps), run_mesh(options, layout, steps));
      }
    }
  }
}

// The optimizer updates the embedding and two blocks before the other blocks. The final norm of a model with a tied head belongs
// to the embedding's unit, so its states are among those that are updated first.
TEST_F(OffloadTest, GivesTheSameBitsWithATiedHeadAndManyBlocks) {
  train::EngineOptions options = context_options("bf16");
  options.model.tied_head = true;
  options.model.layers = 6;
  for (const Layout& layout : {kOffloaded[1], kOffloaded[2], kOffloaded[3]}) {
    SCOPED_TRACE(text(layout));
    const Steps steps{.count = 2, .micro_batches = layout.mesh.data_coordinates()};
    expect_same_bits(run_mesh(offloaded(options), layout, steps), run_mesh(options, layout, steps));
  }
}

TEST_F(OffloadTest, GivesTheSameBitsWithExpertsAndStages) {
  train::EngineOptions deep = context_options("fp8_delayed");
  deep.model.layers = 4;
  const std::pair<train::EngineOptions, Layout> cases[] = {
      {mixture_options("fp8_delayed"),
       {.mesh = Mesh({1, 4, 1, 1}, 2), .weights = Weights::resharded, .gradients = Gradients::sharded}},
      {deep, {.mesh = Mesh({1, 2, 1, 1}, 1, {.count = 2})}},
      {deep, {.mesh = Mesh({1, 1, 1, 1}, 1, {.count = 2, .chunks = 2})}}};
  for (const auto& [options, layout] : cases) {
    SCOPED_TRACE(text(layout));
    const Steps steps{.count = 2, .micro_batches = 2 * layout.mesh.data_coordinates()};
    expect_same_bits(run_mesh(offloaded(options), layout, steps), run_mesh(options, layout, steps));
  }
}

// Where shards of adapters are too small for all ranks, some ranks have no states to update.
TEST_F(OffloadTest, GivesTheSameBitsWhereARankHasNoStates) {
  train::EngineOptions options = tensor_options("bf16");
  options.adapters = {.rank = 1, .alpha = 1, .targets = {"o_proj"}, .dropout = {}};
  const Layout layout{.mesh = Mesh({1, 4, 1, 1})};
  const Steps steps{.count = 2, .micro_batches = layout.mesh.data_coordinates()};
  expect_same_bits(run_mesh(offloaded(options), layout, steps), run_mesh(options, layout, steps));
}

// Streams interleaved as far as the waits permit: a missing wait reads a slot too early or too late.
TEST_F(OffloadTest, GivesTheSameBitsInAnyOrder) {
  for (const Layout& layout : {kOffloaded[0], kOffloaded[3]}) {
    const Steps steps{.count = 3, .micro_batches = layout.mesh.data_coordinates()};
    expect_same_bits_in_any_order(offloaded(context_options("fp8_rowwise")), layout, steps, {0.0, 0.5});
  }
}

// Per parameter 12 bytes of FP32 states, and 4 bytes of BF16 moments without master weights. The device has three slots instead.
TEST_F(OffloadTest, PutsAllStatesIntoHostMemory) {
  train::EngineOptions options = offloaded(context_options("fp8_delayed"));
  std::int64_t elements = 0, rounding = 0;
  on_engines(options, kAlone, [&](train::Engine& engine, const parallel::Groups&) {
    elements = engine.options().model.parameters();
    rounding = 3 * 256 * static_cast<std::int64_t>(engine.model().parameters().parameters().size());
    EXPECT_EQ(engine.device().memory().peak[static_cast<std::size_t>(MemoryCategory::master_weights)], 0u);
    // Three slots are as large as the largest piece, which holds at least 512 elements of the embedding: 6144 bytes.
    EXPECT_LE(engine.device().memory().peak[static_cast<std::size_t>(MemoryCategory::moments)], 3u * 8192u);
    EXPECT_GE(engine.device().memory().peak[static_cast<std::size_t>(MemoryCategory::moments)], 3u * 6144u);
  });
  EXPECT_GE(host_bytes(options, kAlone), static_cast<std::size_t>(12 * elements));
  EXPECT_LE(host_bytes(options, kAlone), static_cast<std::size_t>(12 * elements + rounding));
  options.storage.master_weights = false;
  options.storage.moments = DType::bf16;
  EXPECT_GE(host_bytes(options, kAlone), static_cast<std::size_t>(4 * elements));
  EXPECT_LE(host_bytes(options, kAlone), static_cast<std::size_t>(4 * elements + rounding));
  options.storage.training = false;
  EXPECT_EQ(host_bytes(options, kAlone), 0u) << "without training there are no states";
}

}  // namespace
}  // namespace octet::testing
