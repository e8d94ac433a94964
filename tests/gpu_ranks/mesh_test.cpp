// Compares steps on several GPUs with those of one GPU. Ranks are threads, each with its own GPU.
#include <gtest/gtest.h>

#include "octet/device/cuda/cuda_device.h"
#include "support/abort_trace.h"
#include "support/blind_routers.h"
#include "support/mesh_run.h"

namespace octet::testing {
namespace {

using parallel::Gradients;
using parallel::Layout;
using parallel::Mesh;
using parallel::Weights;

constexpr int kMicroBatches = 4;

Steps steps_of(int count, int micro_batches = kMicroBatches) { return {.count = count, .micro_batches = micro_batches}; }

// A test's parameter is "gpt_neox RECIPE", or the recipe of a Llama.
bool is_gpt_neox(const std::string& name) { return name.starts_with("gpt_neox "); }
train::EngineOptions options_of(const std::string& name) {
  train::EngineOptions options = tiny_options(is_gpt_neox(name) ? name.substr(name.find(' ') + 1) : name);
  if (is_gpt_neox(name)) options.model = tiny_gpt_neox_config(true);
  options.model.dim = 64;
  options.model.head_dim = 16;
  options.model.ffn = 160;
  options.seq_len = 64;
  options.deterministic = true;
  options.recipe.amax_history_len = 4;
  return options;
}

// If `prepare` is given, it is called with every engine before its steps.
RunState run(const train::EngineOptions& options, const Layout& layout, const Steps& steps, DeviceKind device = DeviceKind::cuda,
             const std::function<void(train::Engine&)>& prepare = {}) {
  RunState state;
  std::mutex mutex;
  on_engines(
      options, layout,
      [&](train::Engine& engine, const parallel::Groups&) {
        if (prepare) prepare(engine);
        const Taken taken = take(engine, steps);
        engine.settle();
        const std::lock_guard lock(mutex);
        state.add(engine, taken);
      },
      device);
  state.gradients.expect_whole();
  state.weights.expect_whole();
  return state;
}
RunState run(const train::EngineOptions& options, const Layout& layout, int steps) {
  return run(options, layout, steps_of(steps));
}
RunState alone(const train::EngineOptions& options, int steps, DeviceKind device = DeviceKind::cuda) {
  return run(options, {}, steps_of(steps), device);
}

class GpuMesh : public ::testing::TestWithParam<std::string> {
 protected:
  // Returns the layouts for which this machine has enough GPUs. The axes are replicate x shard x context x tensor.
  static std::vector<Layout> layouts(std::initializer_list<Layout> all) {
    std::vector<Layout> result;
    for (const Layout& layout : all) {
      if (layout.mesh.ranks() <= cuda_device_count()) result.push_back(layout);
    }
    return result;
  }
  void SetUp() override {
    if (cuda_device_count() < 2) GTEST_SKIP() << "needs 2 GPUs; this machine has " << cuda_device_count();
  }
};

// The gradient of a micro-batch has the same bits on every GPU. The error of a sum of n gradients is at most n u times the sum of
// their magnitudes.
TEST_P(GpuMesh, TakesTheStepOfOneGpu) {
  const train::EngineOptions options = options_of(GetParam());
  const RunState expected = alone(options, 1);
  const ByName<double> magnitudes = gradient_magnitudes(options, steps_of(1), DeviceKind::cuda);
  for (const Layout& layout :
       layouts({{.mesh = Mesh({2, 1, 1, 1})},
                {.mesh = Mesh({1, 2, 1, 1})},
                {.mesh = Mesh({1, 2, 1, 1}), .weights = Weights::resharded, .gradients = Gradients::sharded},
                {.mesh = Mesh({1, 4, 1, 1})},
                {.mesh = Mesh({1, 4, 1, 1}), .weights = Weights::resharded, .gradients = Gradients::sharded},
                {.mesh = Mesh({2, 2, 1, 1}), .weights = Weights::resharded, .gradients = Gradients::sharded}})) {
    SCOPED_TRACE(text(layout));
    const RunState actual = run(options, layout, 1);
    expect_same_loss(actual, expected, kMicroBatches * options.micro_batch_size * options.seq_len);
    EXPECT_TRUE(actual.scales == expected.scales) << "the ranks compute amaxes of the same numbers, so the scales must be equal";
    expect_near_gradients(actual, expected, magnitudes, 2 * kMicroBatches * kUnitRoundoffF32);
  }
}

TEST_P(GpuMesh, PartsOfOneMicroBatchStayAsTheyCame) {
  const train::EngineOptions options = options_of(GetParam());
  for (const Layout& layout : layouts({{.mesh = Mesh({1, 2, 1, 1}), .gradients = Gradients::sharded, .reduce = DType::bf16},
                                       {.mesh = Mesh({1, 1, 2, 1}), .gradients = Gradients::sharded, .reduce = DType::bf16},
                                       {.mesh = Mesh({2, 2, 1, 1}),
                                       .weights = Weights::resharded,
                                       .gradients = Gradients::sharded,
                                       .reduce = DType::bf16}})) {
    SCOPED_TRACE(text(layout));
    const Steps steps = steps_of(3, layout.mesh.data_coordinates());
    expect_parts_may_stay_as_they_came(layout, [&](const Layout& which) { return run(options, which, steps); });
  }
}

// The truth is the step in FP64 on the CPU. Attention rounds in the same way on a part of the sequence as on the whole; only the
// gradients of K and V are rounded up to three more times.
TEST_P(GpuMesh, HoldsPartsOfSequences) {
  struct Case {
    std::int64_t window;
    bool documents;
  };
  for (const auto& [window, documents] : {Case{0, false}, Case{20, false}, Case{0, true}, Case{20, true}}) {
    if (window > 0 && is_gpt_neox(GetParam())) continue;
    train::EngineOptions options = options_of(GetParam());
    options.model.sliding_window = window;
    options.document_mask = documents;
    options.deterministic = !documents;
    train::EngineOptions exact = options;
    exact.recipe = recipe_named("fp64");
    const RunState truth = alone(exact, 1, DeviceKind::cpu), one = alone(options, 1);
    for (const Layout& layout :
         layouts({{.mesh = Mesh({1, 1, 2, 1})},
                  {.mesh = Mesh({1, 1, 4, 1})},
                  {.mesh = Mesh({1, 2, 2, 1}), .weights = Weights::resharded, .gradients = Gradients::sharded}})) {
      SCOPED_TRACE(text(layout) + concat(", window ", window, documents ? ", documents" : ""));
      const RunState actual = run(options, layout, 1);
      EXPECT_NEAR(actual.taken.losses[0], one.taken.losses[0], 24 * kUnitRoundoffBf16 * one.taken.losses[0]);
      expect_hardly_more_rounding(actual, one, truth);
    }
  }
}

class GpuMixtures : public GpuMesh {};

// Tokens travel between the ranks that hold the experts. In per-tensor recipes every token goes to all experts. If the tokens
// chose, different rounding would now and then choose another expert; such curves differed by up to 1.4%.
TEST_P(GpuMixtures, SharesExpertsOut) {
  train::EngineOptions options = options_of(GetParam());
  options.model.init_std = 0.1;
  options.model.family = "mixtral";
  options.model.experts = 4;
  options.model.experts_per_token = options.recipe.is_fp8() && options.recipe.x.tile == ScaleTile::tensor ? 4 : 2;
  options.model.router_balance = 0.01;
  const RunState one = alone(options, 20);
  EXPECT_LT(one.taken.losses.back(), 0.95 * one.taken.losses.front());
  for (const Layout& layout :
       layouts({{.mesh = Mesh({1, 2, 1, 1}, 2)},
                {.mesh = Mesh({1, 2, 1, 1}), .weights = Weights::resharded, .gradients = Gradients::sharded},
                {.mesh = Mesh({1, 1, 2, 1})},
                {.mesh = Mesh({1, 1, 1, 2})},
                {.mesh = Mesh({1, 4, 1, 1}, 2), .weights = Weights::resharded, .gradients = Gradients::sharded},
                {.mesh = Mesh({1, 2, 1, 2}, 2), .weights = Weights::resharded, .gradients = Gradients::sharded}})) {
    SCOPED_TRACE(text(layout) + concat(", expert ", layout.mesh.expert()));
    const RunState actual = run(options, layout, 20);
    expect_same_curve(actual, one);
    EXPECT_TRUE(run(options, layout, 20).taken == actual.taken) << "the same mesh gave another curve";
  }
}

// Rows of experts are under way on a stream of their own while the other micro-batch computes. A wait that is missing shows here,
// now and then.
TEST_P(GpuMixtures, LanesGiveTheBitsOfOneLane) {
  train::EngineOptions options = options_of(GetParam());
  options.model.family = "mixtral";
  options.model.experts = 4;
  options.model.experts_per_token = 2;
  for (const nn::Checkpointing mode : {nn::Checkpointing::none, nn::Checkpointing::selective, nn::Checkpointing::full}) {
    options.checkpointing = mode;
    for (Layout layout :
         layouts({{.mesh = Mesh({1, 2, 1, 1}, 2)}, {.mesh = Mesh({2, 2, 1, 1}, 2), .weights = Weights::resharded}})) {
      SCOPED_TRACE(text(layout));
      const Steps steps = steps_of(10, 4 * layout.mesh.data_coordinates());
      const RunState one = run(options, layout, steps);
      layout.lanes = 2;
      expect_same_bits(run(options, layout, steps), one);
    }
  }
}

// All tokens choose one expert of one rank. On four ranks they are more than the planned memory holds, so they come in two
// rounds. The truth is the step in FP64 on the CPU.
TEST_P(GpuMixtures, CrowdOnOneExpert) {
  train::EngineOptions options = options_of(GetParam());
  options.model.family = "mixtral";
  options.model.experts = 4;
  options.model.experts_per_token = 1;
  options.model.router_balance = 0.01;
  train::EngineOptions exact = options;
  exact.recipe = recipe_named("fp64");
  const RunState truth = run(exact, {}, steps_of(1), DeviceKind::cpu, blind_routers),
                 one = run(options, {}, steps_of(1), DeviceKind::cuda, blind_routers);
  for (const Layout& layout :
       layouts({{.mesh = Mesh({1, 2, 1, 1}, 2)},
                {.mesh = Mesh({1, 4, 1, 1}, 4), .weights = Weights::resharded, .gradients = Gradients::sharded}})) {
    SCOPED_TRACE(text(layout) + concat(", expert ", layout.mesh.expert()));
    const RunState actual = run(options, layout, steps_of(1), DeviceKind::cuda, blind_routers);
    EXPECT_NEAR(actual.taken.losses[0], one.taken.losses[0], 24 * kUnitRoundoffBf16 * one.taken.losses[0]);
    expect_hardly_more_rounding(actual, one, truth);
  }
}

TEST_P(GpuMesh, LearnsAsOneGpuAndRepeats) {
  train::EngineOptions options = options_of(GetParam());
  options.model.init_std = 0.1;
  const RunState one = alone(options, 20);
  EXPECT_LT(one.taken.losses.back(), 0.95 * one.taken.losses.front());
  for (const Layout& layout :
       layouts({{.mesh = Mesh({1, 2, 1, 1})},
                {.mesh = Mesh({1, 1, 2, 1})},
                {.mesh = Mesh({1, 2, 2, 1}), .weights = Weights::resharded, .gradients = Gradients::sharded}})) {
    SCOPED_TRACE(text(layout));
    const RunState actual = run(options, layout, 20);
    expect_same_curve(actual, one);
    EXPECT_TRUE(run(options, layout, 20).taken == actual.taken) << "the same mesh gave another curve";
  }
}

INSTANTIATE_TEST_SUITE_P(Recipes, GpuMesh,
                         ::testing::Values("bf16", "fp8_delayed", "fp8_current", "fp8_rowwise", "fp8_block", "gpt_neox bf16",
                                           "gpt_neox fp8_delayed", "gpt_neox fp8_block"));
INSTANTIATE_TEST_SUITE_P(Recipes, GpuMixtures,
                         ::testing::Values("bf16", "fp8_delayed", "fp8_current", "fp8_rowwise", "fp8_block"));

}  // namespace
}  // namespace octet::testing
