// A mixture of experts over every axis of the mesh, ranks as threads: whoever holds the experts, it is the step of one rank.
#include <gtest/gtest.h>

#include "octet/numerics/bounds.h"
#include "support/blind_routers.h"
#include "support/mesh_run.h"

namespace octet::testing {
namespace {

using parallel::Gradients;
using parallel::Layout;
using parallel::Mesh;
using parallel::Weights;

// Replicate, shard, context, tensor; expert.
const Layout kMixtureLayouts[] = {
    {.mesh = Mesh({1, 2, 1, 1})},
    {.mesh = Mesh({1, 2, 1, 1}, 2)},
    {.mesh = Mesh({1, 4, 1, 1}, 2), .weights = Weights::resharded, .gradients = Gradients::sharded},
    {.mesh = Mesh({1, 4, 1, 1}, 4), .weights = Weights::resharded, .gradients = Gradients::whole},
    {.mesh = Mesh({2, 2, 1, 1}, 2), .gradients = Gradients::sharded},
    {.mesh = Mesh({1, 1, 2, 1})},
    {.mesh = Mesh({1, 2, 2, 1}, 2), .weights = Weights::resharded, .gradients = Gradients::sharded},
    {.mesh = Mesh({1, 1, 1, 2})},
    {.mesh = Mesh({1, 2, 1, 2}, 2), .weights = Weights::resharded, .gradients = Gradients::sharded},
};
constexpr Steps kFourBatches{.count = 1, .micro_batches = 4};

class Mixture : public MeshTest {
 protected:
  static train::EngineOptions options_of(const std::string& recipe) {
    train::EngineOptions options = tiny_options(recipe);
    options.recipe.amax_history_len = 4;
    options.model.family = "mixtral";
    options.model.ffn = 64;  // its halves are multiples of 16
    options.model.experts = 4;
    options.model.experts_per_token = 2;
    options.model.router_balance = 0.05;
    options.model.router_z = 0.01;
    return options;
  }
  // `body`, where given, sees every engine before its steps.
  RunState run(const train::EngineOptions& options, const Layout& layout, const Steps& steps,
               const std::function<void(train::Engine&)>& body = {}) const {
    RunState state;
    std::mutex mutex;
    on_engines(options, layout, [&](train::Engine& engine, const parallel::Groups&) {
      if (body) body(engine);
      const Taken taken = take(engine, steps);
      engine.settle_scales();
      const std::lock_guard lock(mutex);
      state.add(engine, taken);
    });
    state.gradients.expect_whole();
    state.weights.expect_whole();
    return state;
  }
  static std::string name(const Layout& layout) { return text(layout) + concat(", expert ", layout.mesh.expert()); }
};

// As of other models (context_test.cpp): in FP64 what differs is the order of sums.
TEST_F(Mixture, TakesTheStepOfOneRank) {
  for (const auto checkpointing : {nn::Checkpointing::none, nn::Checkpointing::selective, nn::Checkpointing::full}) {
    train::EngineOptions options = options_of("fp64");
    options.checkpointing = checkpointing;
    const RunState expected = run(options, {}, kFourBatches);
    for (const Layout& layout : kMixtureLayouts) {
      SCOPED_TRACE(name(layout) + concat(", checkpointing ", static_cast<int>(checkpointing)));
      expect_same_step(run(options, layout, kFourBatches), expected, 2 * gamma(4096, kUnitRoundoffF64));
    }
  }
}

// The router turned so that all tokens of all ranks go to one rank's experts, beyond what its memory was planned for: they come in
// rounds.
TEST_F(Mixture, TakesTheStepOfOneRankInSeveralRounds) {
  const Layout layout{.mesh = Mesh({1, 4, 1, 1}, 4), .weights = Weights::resharded, .gradients = Gradients::sharded};
  for (const auto checkpointing : {nn::Checkpointing::none, nn::Checkpointing::selective, nn::Checkpointing::full}) {
    train::EngineOptions options = options_of("fp64");
    options.checkpointing = checkpointing;
    options.model.experts_per_token = 1;
    const RunState expected = run(options, {}, kFourBatches, blind_routers);
    expect_same_step(run(options, layout, kFourBatches, blind_routers), expected, 2 * gamma(4096, kUnitRoundoffF64));
  }
}

// Of an expert that lies on one rank the gradient is not cut.
TEST_F(Mixture, PartsOfOneMicroBatchStayAsTheyCame) {
  const train::EngineOptions options = options_of("fp8_delayed");
  for (Layout layout : kMixtureLayouts) {
    layout.gradients = Gradients::sharded;
    layout.reduce = DType::bf16;
    SCOPED_TRACE(name(layout));
    const Steps steps{.count = 2, .micro_batches = layout.mesh.data_coordinates()};
    expect_parts_may_stay_as_they_came(layout, [&](const Layout& which) { return run(options, which, steps); });
  }
}

// Every recipe on every axis: finite, learning, and near one rank's curve.
TEST_F(Mixture, LearnsAsOneRankInEveryRecipe) {
  for (const std::string& recipe : recipes::recipe_names()) {
    train::EngineOptions options = options_of(recipe);
    options.model.init_std = 0.1;
    const Steps steps{.count = 6, .micro_batches = 4, .learning_rate = 3e-3};
    const RunState one = run(options, {}, steps);
    EXPECT_LT(one.taken.losses.back(), one.taken.losses.front()) << recipe;
    for (const Layout& layout : {kMixtureLayouts[2], kMixtureLayouts[8]}) {
      SCOPED_TRACE(recipe + ", " + name(layout));
      expect_same_curve(run(options, layout, steps), one);
    }
  }
}

}  // namespace
}  // namespace octet::testing
