// GPT-NeoX on meshes, ranks as threads: its biases, layer norms and both forms of its block are those of one rank.
#include <gtest/gtest.h>

#include "octet/base/rng.h"
#include "octet/kernels/fill/fill.h"
#include "octet/numerics/bounds.h"
#include "support/mesh_run.h"

namespace octet::testing {
namespace {

using parallel::Gradients;
using parallel::Layout;
using parallel::Mesh;
using parallel::Weights;

const Layout kOneRank, kTwoReplicas{.mesh = Mesh({2, 1, 1, 1})}, kTensor{.mesh = Mesh({1, 1, 1, 4})},
    kContext{.mesh = Mesh({1, 1, 2, 1})},
    kSharded{.mesh = Mesh({1, 2, 1, 1}), .weights = Weights::resharded, .gradients = Gradients::sharded},
    kMixed{.mesh = Mesh({1, 2, 2, 2}), .weights = Weights::resharded, .gradients = Gradients::sharded};
const Layout kNeoxLayouts[] = {kTwoReplicas, kSharded, kContext, kTensor, kMixed};

class GptNeox : public MeshTest {
 protected:
  // Four ranks have 16 columns each of what FP8 quantises.
  static train::EngineOptions options_of(const std::string& recipe, bool parallel_residual) {
    train::EngineOptions options = tiny_options(recipe);
    options.model = tiny_gpt_neox_config(parallel_residual);
    options.model.head_dim = 16;
    options.model.rotary_dim = parallel_residual ? 4 : 16;
    options.model.ffn = 64;
    options.recipe.amax_history_len = 4;
    return options;
  }
  // Biases start at zero, where one that is added twice would not show.
  static void set_biases(train::Engine& engine) {
    for (const parallel::Parameter& p : engine.model().parameters().parameters()) {
      if (!p.spec.name.ends_with(".bias")) continue;
      for (const parallel::TensorPiece& piece : p.pieces()) {
        kernels::fill_normal(engine.queue(), {.x = p.of_part(p.primary(), piece),
                                              .deviation = 0.5,
                                              .seed = 5,
                                              .subject = name_id(p.spec.name),
                                              .elements = piece.global_elements(p.cut.global())});
      }
    }
    engine.refresh();
  }
  struct State : RunState {
    std::array<double, 2> evaluation{};
  };
  static State run(const train::EngineOptions& options, const Layout& layout, int steps) {
    State state;
    ByName<std::uint8_t> exported;
    std::mutex mutex;
    on_engines(options, layout, [&](train::Engine& engine, const parallel::Groups&) {
      set_biases(engine);
      const Taken taken = take(engine, {.count = steps});
      engine.settle_scales();
      const std::array<double, 2> evaluation = evaluate_a_row(engine);
      const ByName<std::uint8_t> of_rank = exported_weights(engine);
      const std::lock_guard lock(mutex);
      if (engine.options().rank == 0) exported = of_rank;
      state.add(engine, taken);
      state.evaluation = evaluation;
    });
    state.gradients.expect_whole();
    state.weights.expect_whole();
    EXPECT_TRUE(exported == state.weights.by_name()) << "what the first rank writes is what all hold, " << text(layout);
    return state;
  }
};

// The bound is that of tests/train/tensor_test.cpp.
TEST_F(GptNeox, TakesTheStepOfOneRankOnEveryMesh) {
  const double bound = 2 * gamma(4096, kUnitRoundoffF64);
  for (const bool parallel_residual : {true, false}) {
    train::EngineOptions options = options_of("fp64", parallel_residual);
    options.model.tied_head = !parallel_residual;
    const State expected = run(options, kOneRank, 1);
    for (const Layout& layout : kNeoxLayouts) {
      SCOPED_TRACE(text(layout) + (parallel_residual ? ", parallel" : ", sequential"));
      const State actual = run(options, layout, 1);
      expect_same_step(actual, expected, bound);
      EXPECT_NEAR(actual.evaluation[0], expected.evaluation[0], 2 * bound * expected.evaluation[0]) << "of moved weights";
    }
  }
}

class GptNeoxRecipes : public GptNeox, public ::testing::WithParamInterface<std::string> {};

TEST_P(GptNeoxRecipes, RepeatsToTheBitWhateverBackwardComputesAgain) {
  for (const bool parallel_residual : {true, false}) {
    train::EngineOptions options = options_of(GetParam(), parallel_residual);
    const Layout& layout = parallel_residual ? kTensor : kMixed;
    SCOPED_TRACE(text(layout));
    const State first = run(options, layout, 2);
    for (const nn::Checkpointing mode : {nn::Checkpointing::selective, nn::Checkpointing::full}) {
      options.checkpointing = mode;
      const State state = run(options, layout, 2);
      EXPECT_TRUE(state.weights == first.weights);
      EXPECT_TRUE(state.scales == first.scales);
      EXPECT_TRUE(state.taken == first.taken);
    }
  }
}

TEST_P(GptNeoxRecipes, LearnsAsOneRank) {
  for (const bool parallel_residual : {true, false}) {
    train::EngineOptions options = options_of(GetParam(), parallel_residual);
    options.model.init_std = 0.1;
    const State one = run(options, kOneRank, 20);
    EXPECT_LT(one.taken.losses.back(), 0.9 * one.taken.losses.front()) << "a curve that goes nowhere tells nothing";
    const Layout& layout = parallel_residual ? kTensor : kContext;
    SCOPED_TRACE(text(layout));
    expect_same_curve(run(options, layout, 20), one);
  }
}

INSTANTIATE_TEST_SUITE_P(Recipes, GptNeoxRecipes,
                         ::testing::Values("fp32", "bf16", "fp8_delayed", "fp8_current", "fp8_rowwise", "fp8_block", "mxfp8"));

}  // namespace
}  // namespace octet::testing
