// Compares the steps of layers that are split over the GPUs of one machine with those of one GPU. Ranks are threads of this
// process.
#include <gtest/gtest.h>

#include "octet/device/cuda/cuda_device.h"
#include "support/mesh_run.h"

namespace octet::testing {
namespace {

struct State : RunState {
  std::array<double, 2> evaluation{};
};

class TensorOnGpus : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (cuda_device_count() < 2) GTEST_SKIP() << "needs 2 GPUs; this machine has " << cuda_device_count();
  }
  // A test's parameter is "gpt_neox RECIPE", "window RECIPE" for a Llama with a sliding window, or the recipe of a Llama.
  static train::EngineOptions options_of(const std::string& name) {
    const bool gpt_neox = name.starts_with("gpt_neox "), window = name.starts_with("window ");
    train::EngineOptions options = tiny_options(gpt_neox || window ? name.substr(name.find(' ') + 1) : name);
    if (gpt_neox) options.model = tiny_gpt_neox_config(true);
    options.model.dim = 64;
    options.model.head_dim = 16;
    options.model.ffn = 128;
    options.model.vocab = 64;
    options.model.sliding_window = window ? 20 : 0;
    options.model.init_std = 0.1;
    options.seq_len = 70;
    options.deterministic = true;
    return options;
  }
  State together(const parallel::Mesh& mesh, int steps) const { return together(options_of(GetParam()), mesh, steps); }
  static State together(const train::EngineOptions& options, const parallel::Mesh& mesh, int steps,
                        DeviceKind device = DeviceKind::cuda) {
    State state;
    ByName<std::uint8_t> exported;
    std::mutex mutex;
    on_engines(
        options, {.mesh = mesh},
        [&](train::Engine& engine, const parallel::Groups&) {
          const int rank = engine.options().rank;
          const Taken taken = take(engine, {.count = steps});
          engine.settle();
          const std::array<double, 2> evaluation = evaluate_a_row(engine);
          const ByName<std::uint8_t> of_rank = exported_weights(engine);
          const std::lock_guard lock(mutex);
          EXPECT_TRUE(state.ranks == 0 || state.evaluation == evaluation) << "rank " << rank;
          if (rank == 0) exported = of_rank;
          state.add(engine, taken);
          state.evaluation = evaluation;
        },
        device);
    state.gradients.expect_whole();
    state.weights.expect_whole();
    EXPECT_TRUE(exported == state.weights.by_name()) << "rank 0 exports other weights than the ranks hold";
    return state;
  }
  State alone(int steps) const { return together({}, steps); }
  static std::vector<parallel::Mesh> meshes() {
    std::vector<parallel::Mesh> result;
    for (const std::array<int, parallel::kAxes - 1>& sizes :
         {std::array{1, 1, 1, 2}, std::array{1, 1, 1, 4}, std::array{1, 2, 1, 2}, std::array{1, 2, 2, 2}}) {
      const parallel::Mesh mesh(sizes);
      if (mesh.ranks() <= cuda_device_count()) result.push_back(mesh);
    }
    return result;
  }
};

TEST_P(TensorOnGpus, BeginWithTheBitsOfOne) {
  const State one = alone(0);
  for (const parallel::Mesh& mesh : meshes()) EXPECT_TRUE(together(mesh, 0).weights == one.weights) << mesh.ranks() << " ranks";
}

// The truth is the step in FP64 on the CPU. Products of parts of a layer and their sum over ranks round hardly more than whole
// products.
TEST_P(TensorOnGpus, TakeTheStepOfOne) {
  train::EngineOptions exact = options_of(GetParam());
  exact.recipe = recipe_named("fp64");
  const State truth = together(exact, {}, 1, DeviceKind::cpu), one = alone(1);
  for (const parallel::Mesh& mesh : meshes()) {
    SCOPED_TRACE(text(parallel::Layout{.mesh = mesh}));
    const State actual = together(mesh, 1);
    EXPECT_NEAR(actual.taken.losses[0], one.taken.losses[0], 24 * kUnitRoundoffBf16 * one.taken.losses[0]);
    expect_hardly_more_rounding(actual, one, truth);
  }
}

TEST_P(TensorOnGpus, LearnAsOne) {
  const State one = alone(12);
  for (const parallel::Mesh& mesh : meshes()) {
    SCOPED_TRACE(text(parallel::Layout{.mesh = mesh}));
    const State actual = together(mesh, 12);
    expect_same_curve(actual, one);
    EXPECT_NEAR(actual.evaluation[0], one.evaluation[0], 0.01 * one.evaluation[0]);
    EXPECT_EQ(actual.evaluation[1], one.evaluation[1]);
  }
}

TEST_P(TensorOnGpus, RepeatToTheBit) {
  const parallel::Mesh mesh({1, 1, 1, 2});
  EXPECT_TRUE(together(mesh, 5).weights == together(mesh, 5).weights);
}

INSTANTIATE_TEST_SUITE_P(Recipes, TensorOnGpus,
                         ::testing::Values("bf16", "fp8_delayed", "fp8_current", "fp8_rowwise", "fp8_block", "mxfp8",
                                           "gpt_neox bf16", "gpt_neox fp8_delayed", "gpt_neox fp8_current",
                                           "gpt_neox fp8_rowwise", "gpt_neox fp8_block", "window bf16", "window fp8_delayed"));

}  // namespace
}  // namespace octet::testing
