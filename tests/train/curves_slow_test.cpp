// Curves of many ranks, ranks as threads: however a mesh shares data, parameters, sequences and layers out, it learns as one
// rank.
#include <gtest/gtest.h>

#include <optional>

#include "support/mesh_run.h"

namespace octet::testing {
namespace {

using nn::Checkpointing;
using parallel::Gradients;
using parallel::Layout;
using parallel::Mesh;
using parallel::Weights;

const Layout kAllAxes{.mesh = Mesh({1, 2, 2, 2})};

class Curves : public MeshTest, public ::testing::WithParamInterface<std::string> {
 protected:
  // What all axes can cut, and weights as small as expect_same_curve asks for.
  Curves() : options_(tiny_options(GetParam())) {
    options_.model.head_dim = 16;
    options_.model.ffn = 64;
    options_.model.init_std = 0.1;
    options_.recipe.amax_history_len = 4;
  }
  RunState run(const Layout& layout, int micro_batches) const {
    RunState state;
    std::mutex mutex;
    on_engines(options_, layout, [&](train::Engine& engine, const parallel::Groups&) {
      const Taken taken = take(engine, {.count = 20, .micro_batches = micro_batches});
      engine.settle_scales();
      const std::lock_guard lock(mutex);
      state.add(engine, taken);
    });
    return state;
  }
  RunState alone(int micro_batches) const {
    const RunState one = run({}, micro_batches);
    EXPECT_LT(one.taken.losses.back(), 0.9 * one.taken.losses.front()) << "a curve that goes nowhere tells nothing";
    return one;
  }

  train::EngineOptions options_;
};

// Eight ranks take a micro-batch of a step each, the others several.
TEST_P(Curves, ShardsLearnAsOneRank) {
  constexpr int kMicroBatches = 8;
  const RunState one = alone(kMicroBatches);
  for (const Layout& layout : {Layout{.mesh = Mesh({1, 2, 1, 1})}, Layout{.mesh = Mesh({1, 4, 1, 1})},
                               Layout{.mesh = Mesh({1, 8, 1, 1}), .weights = Weights::resharded, .gradients = Gradients::sharded},
                               Layout{.mesh = Mesh({2, 2, 1, 1})}}) {
    SCOPED_TRACE(text(layout));
    expect_same_curve(run(layout, kMicroBatches), one);
  }
}

// What backward computes again has the same bits.
TEST_P(Curves, AllAxesTogetherLearnAsOneRank) {
  const RunState one = alone(2);
  std::optional<RunState> first;
  for (const Checkpointing mode : {Checkpointing::none, Checkpointing::selective, Checkpointing::full}) {
    SCOPED_TRACE(concat("checkpointing ", static_cast<int>(mode)));
    options_.checkpointing = mode;
    const RunState state = run(kAllAxes, 2);
    expect_same_curve(state, one);
    if (!first) first = state;
    EXPECT_TRUE(state.taken == first->taken);
    EXPECT_TRUE(state.weights == first->weights);
  }
}

TEST_P(Curves, AllAxesTogetherAddMicroBatchesUp) { expect_same_curve(run(kAllAxes, 4), alone(4)); }

INSTANTIATE_TEST_SUITE_P(Recipes, Curves,
                         ::testing::Values("bf16", "fp8_delayed", "fp8_current", "fp8_rowwise", "fp8_block", "mxfp8"));

}  // namespace
}  // namespace octet::testing
