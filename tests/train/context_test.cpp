// Context parallelism, ranks as threads: however many ranks hold the parts of a sequence, it is the same step.
#include <gtest/gtest.h>

#include "octet/numerics/bounds.h"
#include "support/mesh_run.h"

namespace octet::testing {
namespace {

using parallel::Axis;
using parallel::Layout;
using parallel::Mesh;

const Layout kAlone, kTwo{.mesh = Mesh({1, 1, 2, 1})}, kFour{.mesh = Mesh({1, 1, 4, 1})}, kReplicas{.mesh = Mesh({2, 1, 2, 1})};
const Layout kLayouts[] = {kTwo, kFour, kReplicas};

struct State : RunState {
  Wholes<double> values;  // before the first step
  std::array<double, 2> evaluation{};
  comm::Traffic sent;  // over the context axis in all steps
};

class Context : public MeshTest {
 protected:
  static train::EngineOptions options_of(const std::string& recipe) {
    train::EngineOptions options = tiny_options(recipe);
    options.recipe.amax_history_len = 4;
    return options;
  }
  // `values`, where given, replace the random weights.
  State run(const train::EngineOptions& options, const Layout& layout, int steps, const Wholes<double>* values = nullptr) const {
    State state;
    std::mutex mutex;
    on_engines(options, layout, [&](train::Engine& engine, const parallel::Groups& groups) {
      if (values) set_values(engine, *values);
      {
        const std::lock_guard lock(mutex);
        for (const parallel::Parameter& p : engine.model().parameters().parameters()) {
          state.values.add(p, values_of(p.value_part ? p.value_part : p.primary()));
        }
      }
      const Taken taken = take(engine, {.count = steps, .learning_rate = learning_rate});
      const comm::Traffic sent = groups.context->traffic();
      engine.settle_scales();
      const std::array<double, 2> evaluation = evaluate_a_row(engine);
      if (layout.mesh.size(Axis::context) > 1) {
        EXPECT_THROW(engine.logits(random_tokens(options.seq_len, options.model.vocab).tokens), Error);
      }
      const std::lock_guard lock(mutex);
      EXPECT_TRUE(state.ranks == 0 ||
                  (state.evaluation == evaluation && state.sent.bytes == sent.bytes && state.sent.messages == sent.messages))
          << "rank " << engine.options().rank;
      state.add(engine, taken);
      state.evaluation = evaluation;
      state.sent = sent;
    });
    state.gradients.expect_whole();
    state.weights.expect_whole();
    return state;
  }
  State alone(const train::EngineOptions& options, int steps, const Wholes<double>* values = nullptr) const {
    return run(options, kAlone, steps, values);
  }

  double learning_rate = 1e-3;
};

// In FP64 what differs is the order of sums, a few thousand terms along the longest path from a token to a gradient, each within
// a roundoff of the magnitudes it adds up: gamma(2^12), relative to the norm of what comes out, whose terms cancel by less
// than 2.
TEST_F(Context, TakesTheStepOfOneRank) {
  for (const bool long_batch : {false, true}) {
    train::EngineOptions options = options_of("fp64");
    options.document_mask = long_batch;
    if (long_batch) options.micro_batch_size = 3;
    const State expected = alone(options, 1);
    for (const Layout& layout : kLayouts) {
      SCOPED_TRACE(text(layout));
      expect_same_step(run(options, layout, 1), expected, 2 * gamma(4096, kUnitRoundoffF64));
    }
  }
}

// 48 tokens, in chunks of 8 and 3 as well.
TEST_F(Context, TakesTheStepOfOneRankOnThreeAndEight) {
  for (const bool documents : {false, true}) {
    train::EngineOptions options = options_of("fp64");
    options.model.max_position = options.seq_len = 48;
    options.micro_batch_size = 3;
    options.document_mask = documents;
    const State expected = alone(options, 1);
    for (const int ranks : {3, 8}) {
      const Layout layout{.mesh = Mesh({1, 1, ranks, 1})};
      SCOPED_TRACE(text(layout) + (documents ? ", documents" : ""));
      expect_same_step(run(options, layout, 1), expected, 2 * gamma(4096, kUnitRoundoffF64));
    }
  }
}

// 24 tokens in chunks of 6 or 3: windows that end within the own chunk, within another, in none.
TEST_F(Context, TakesTheStepOfOneRankWithAWindow) {
  for (const std::int64_t window : {1, 4, 11, 23, 24}) {
    for (const bool documents : {false, true}) {
      train::EngineOptions options = options_of("fp64");
      options.model.sliding_window = window;
      options.document_mask = documents;
      const State expected = alone(options, 1);
      for (const Layout& layout : {kTwo, kFour}) {
        SCOPED_TRACE(text(layout) + concat(", window ", window, documents ? ", documents" : ""));
        expect_same_step(run(options, layout, 1), expected, 2 * gamma(4096, kUnitRoundoffF64));
      }
    }
  }
}

// The gradients of K and V are rounded up to three times more than on one rank (a range's share, their sum, the sum over ranks).
TEST_F(Context, RoundsHardlyMoreThanOneRank) {
  for (const std::string recipe : {"fp32", "bf16"}) {
    const double unit = recipe == "fp32" ? kUnitRoundoffF32 : kUnitRoundoffBf16;
    const train::EngineOptions options = options_of(recipe);
    const State one = alone(options, 1), truth = alone(options_of("fp64"), 1, &one.values);
    for (const Layout& layout : kLayouts) {
      SCOPED_TRACE(recipe + ", " + text(layout));
      const State actual = run(options, layout, 1);
      // The residual stream is rounded about ten times a layer, logits and losses a few times more.
      EXPECT_NEAR(actual.taken.losses[0], truth.taken.losses[0], gamma(24, unit) * truth.taken.losses[0]);
      expect_hardly_more_rounding(actual, one, truth);
    }
  }
}

// Every rank has the largest amaxes of all, so all cast alike.
TEST_F(Context, ScalesAreThoseOfOneRank) {
  learning_rate = 0;  // weights stay equal to the bit
  const train::EngineOptions options = options_of("fp8_delayed");
  const State one = alone(options, 1);
  for (const Layout& layout : kLayouts) {
    SCOPED_TRACE(text(layout));
    expect_scales_of_one(run(options, layout, 1), one, options.model.layers);
  }
}

TEST_F(Context, EvaluatesAsOneRankOnAllRanks) {
  const double bound = 2 * gamma(4096, kUnitRoundoffF64);
  train::EngineOptions options = options_of("fp64");
  const double without_mask = alone(options, 0).evaluation[0];
  options.document_mask = true;
  const State one = alone(options, 0);
  EXPECT_NE(one.evaluation[0], without_mask);
  for (const Layout& layout : kLayouts) {
    SCOPED_TRACE(text(layout));
    const State actual = run(options, layout, 0);
    EXPECT_NEAR(actual.evaluation[0], one.evaluation[0], bound * one.evaluation[0]);
    EXPECT_EQ(actual.evaluation[1], one.evaluation[1]);
  }
}

// K and V of a layer once forward (twice where backward computes it again), once backward, and their gradients; nothing else.
TEST_F(Context, SendsWhatItMust) {
  for (const nn::Checkpointing mode : {nn::Checkpointing::none, nn::Checkpointing::full}) {
    train::EngineOptions options = options_of("bf16");
    options.checkpointing = mode;
    const models::DecoderConfig& model = options.model;
    for (const Layout& layout : kLayouts) {
      SCOPED_TRACE(text(layout));
      const int ranks = layout.mesh.size(Axis::context), steps = 2;
      const std::int64_t tokens = options.micro_batch_size * options.seq_len / ranks;
      const std::int64_t local = tokens * 2 * model.kv_heads * model.head_dim * static_cast<std::int64_t>(sizeof(BFloat16));
      const std::int64_t micro_batches = steps * Steps().micro_batches / layout.mesh.data_coordinates();
      const std::int64_t exchanges = micro_batches * model.layers * (mode == nn::Checkpointing::full ? 4 : 3);
      const State state = run(options, layout, steps);
      EXPECT_EQ(state.sent.messages, exchanges * 2 * options.micro_batch_size) << "each half of each sequence by itself";
      EXPECT_EQ(state.sent.bytes, static_cast<double>(exchanges * (ranks - 1) * local));
    }
  }
}

class ContextRecipes : public Context, public ::testing::WithParamInterface<std::string> {};

// The same mesh, whatever backward computes again.
TEST_P(ContextRecipes, RepeatsToTheBit) {
  train::EngineOptions options = options_of(GetParam());
  options.document_mask = true;
  const auto compare = [&](const Layout& layout, const State& first) {
    SCOPED_TRACE(text(layout));
    const State state = run(options, layout, 3);
    EXPECT_TRUE(state.weights == first.weights);
    EXPECT_TRUE(state.scales == first.scales);
    EXPECT_TRUE(state.taken == first.taken);
  };
  compare(kReplicas, run(options, kReplicas, 3));
  const State first = run(options, kTwo, 3);
  for (const nn::Checkpointing mode : {nn::Checkpointing::none, nn::Checkpointing::selective, nn::Checkpointing::full}) {
    options.checkpointing = mode;
    compare(kTwo, first);
  }
}

TEST_P(ContextRecipes, LearnsAsOneRank) {
  train::EngineOptions options = options_of(GetParam());
  options.model.init_std = 0.1;
  const State one = alone(options, 20);
  EXPECT_LT(one.taken.losses.back(), 0.9 * one.taken.losses.front()) << "a curve that goes nowhere tells nothing";
  for (const Layout& layout : {kTwo, kFour}) {
    SCOPED_TRACE(text(layout));
    expect_same_curve(run(options, layout, 20), one);
  }
}

INSTANTIATE_TEST_SUITE_P(Recipes, ContextRecipes,
                         ::testing::Values("fp32", "bf16", "fp8_delayed", "fp8_current", "fp8_rowwise", "fp8_block", "mxfp8"));

}  // namespace
}  // namespace octet::testing
