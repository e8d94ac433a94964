// Two lanes: micro-batches that go through the model together compute what they compute one after another. Each lane has a stash
// and a scratch of its own; on_engines() holds the memory of every rank to the plan, to the byte.
#include <gtest/gtest.h>

#include "support/blind_routers.h"
#include "train/meshes.h"

namespace octet::testing {
namespace {

class Lanes : public MeshTest {
 protected:
  static RunState run(const train::EngineOptions& options, Layout layout, int lanes, int micro_batches,
                      const Beside& beside = {}) {
    layout.lanes = lanes;
    return run_mesh(options, layout, {.count = 2, .micro_batches = micro_batches * layout.mesh.data_coordinates()}, beside);
  }
  static void expect_bits_of_one_lane(const train::EngineOptions& options, const Layout& layout, int micro_batches = 4,
                                      const Beside& beside = {}) {
    SCOPED_TRACE(text(layout));
    const RunState expected = run(options, layout, 1, micro_batches, beside);
    expect_same_bits(run(options, layout, 2, micro_batches, beside), expected);
  }
};

const Layout kTwo{.mesh = Mesh({1, 2, 1, 1}, 2)};
constexpr nn::Checkpointing kModes[] = {nn::Checkpointing::none, nn::Checkpointing::selective, nn::Checkpointing::full};

TEST_F(Lanes, GiveTheBitsOfOneLaneInEveryRecipe) {
  for (const std::string& recipe : recipes::recipe_names()) {
    for (const nn::Checkpointing mode : kModes) {
      SCOPED_TRACE(concat(recipe, ", checkpointing ", static_cast<int>(mode)));
      train::EngineOptions options = mixture_options(recipe);
      options.checkpointing = mode;
      expect_bits_of_one_lane(options, kTwo);
    }
  }
}

TEST_F(Lanes, GiveTheBitsOfOneLaneOnEveryAxis) {
  for (Layout layout : kMixtures) {
    if (layout.mesh.expert() == 1) continue;
    layout.gradients = Gradients::whole;  // which are summed over the ranks once a step, as with one lane
    expect_bits_of_one_lane(mixture_options("fp8_delayed"), layout, 2);
  }
}

// If a rank keeps shards of gradients, the gradients of a pair are reduced together. Reduced in F32, a step of one pair is then
// that of whole gradients.
TEST_F(Lanes, ReduceTheGradientsOfAPairTogether) {
  Layout sharded{.mesh = Mesh({1, 4, 1, 1}, 2), .weights = Weights::resharded, .gradients = Gradients::sharded}, whole = sharded;
  whole.gradients = Gradients::whole;
  for (const nn::Checkpointing mode : kModes) {
    train::EngineOptions options = mixture_options("fp8_delayed");
    options.checkpointing = mode;
    expect_same_bits(run(options, sharded, 2, 2), run(options, whole, 1, 2));
  }
}

// Blocks between mixtures share slots with those before them, so a lane may not run ahead through several of them.
TEST_F(Lanes, GiveTheBitsOfOneLaneIfSomeLayersAreDense) {
  Layout sharded{.mesh = Mesh({1, 4, 1, 1}, 2), .weights = Weights::kept, .gradients = Gradients::sharded}, whole = sharded;
  whole.gradients = Gradients::whole;
  Layout resharded = whole;
  resharded.weights = Weights::resharded;
  for (const std::vector<bool>& dense :
       {std::vector<bool>{false, true, false}, {true, false, true}, {true, true, false}, {false, true, true}}) {
    train::EngineOptions options = mixture_options("fp8_delayed");
    options.model.layers = 3;
    options.model.dense_layers = dense;
    expect_bits_of_one_lane(options, resharded, 2);
    expect_same_bits(run(options, sharded, 2, 2), run(options, whole, 1, 2));
  }
}

// A micro-batch without a partner, as in a rehearsal, runs alone.
TEST_F(Lanes, LeaveAnOddMicroBatchAlone) { expect_bits_of_one_lane(mixture_options("fp8_current"), kTwo, 3); }

// All tokens go to one expert, in two rounds, which the experts run in turn.
TEST_F(Lanes, TakeRowsInSeveralRounds) {
  for (const nn::Checkpointing mode : kModes) {
    train::EngineOptions options = mixture_options("fp8_delayed");
    options.checkpointing = mode;
    options.model.experts_per_token = 1;
    expect_bits_of_one_lane(options, {.mesh = Mesh({1, 4, 1, 1}, 4)}, 2, {.before = blind_routers});
  }
}

TEST_F(Lanes, CalibrateAndEvaluate) {
  train::EngineOptions options = mixture_options("fp8_delayed");
  options.calibrates = true;
  std::mutex mutex;
  std::map<int, std::set<double>> losses;  // by lanes
  std::vector<RunState> states;
  for (const int lanes : {1, 2}) {
    const Steps steps{.micro_batches = 4};
    const auto before = [&](train::Engine& engine) {
      int micro = engine.options().rank;
      engine.calibrate(2, [&, tokens = Tokens{}]() mutable {
        tokens = micro_batch(options, steps, 1, std::exchange(micro, micro + 2));
        return tokens.batch();
      });
    };
    const auto after = [&](train::Engine& engine) {
      const double loss = evaluate_a_row(engine)[0];
      const std::lock_guard lock(mutex);
      losses[lanes].insert(loss);
    };
    states.push_back(run(options, kTwo, lanes, 2, {before, after}));
  }
  expect_same_bits(states[1], states[0]);
  EXPECT_EQ(losses[1].size(), 1u);
  EXPECT_EQ(losses[2], losses[1]);
}

}  // namespace
}  // namespace octet::testing
