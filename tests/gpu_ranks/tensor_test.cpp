// Layers cut over the GPUs of one machine, ranks as threads of this process: the steps of one GPU.
#include <gtest/gtest.h>

#include <algorithm>

#include "octet/comm/nccl.h"
#include "octet/device/cuda/cuda_device.h"
#include "support/ranks.h"
#include "support/tiny_model.h"

namespace octet::testing {
namespace {

struct Outcome {
  std::vector<double> losses;
  std::array<double, 2> evaluation{};
  std::vector<std::vector<std::byte>> weights;  // as rank 0 writes them
};

class TensorOnGpus : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (cuda_device_count() < 2) GTEST_SKIP() << "needs 2 GPUs; this machine has " << cuda_device_count();
  }
  static train::EngineOptions options_of(const std::string& recipe) {
    train::EngineOptions options = tiny_options(recipe);
    options.model.dim = 64;
    options.model.head_dim = 16;
    options.model.ffn = 128;
    options.model.vocab = 64;
    options.model.init_std = 0.1;
    options.seq_len = 70;
    options.deterministic = true;
    return options;
  }
  static Outcome run(train::Engine& engine, const parallel::Mesh& mesh, int rank, int steps) {
    const train::EngineOptions& options = engine.options();
    engine.model().parameters().initialise(engine.queue(), 7);
    engine.refresh();
    Outcome result;
    for (int step = 1; step <= steps; ++step) {
      const int coordinates = mesh.data_coordinates();
      engine.zero_gradients(2 / coordinates);
      for (int micro = mesh.data_coordinate(rank); micro < 2; micro += coordinates) {
        const Tokens tokens = random_tokens(options.seq_len * options.micro_batch_size, options.model.vocab,
                                            static_cast<std::uint32_t>(step % 3 * 2 + micro));
        engine.forward_backward(tokens.batch(), nullptr);
      }
      engine.apply(1e-3, static_cast<std::uint32_t>(step));
      const kernels::StepScalars scalars = engine.optimizer().read(engine.queue());
      engine.check_ranks();
      result.losses.push_back(scalars.loss_sum / scalars.token_count);
    }
    const Tokens one = random_tokens(options.seq_len, options.model.vocab, 77);
    result.evaluation = engine.evaluate(one.tokens, one.targets);
    for (const parallel::Parameter& p : engine.model().parameters().parameters()) {
      const Tensor whole = engine.whole(p);
      const auto* bytes = static_cast<const std::byte*>(whole.data);
      if (whole) result.weights.emplace_back(bytes, bytes + whole.bytes());
    }
    EXPECT_EQ(engine.device().memory().total_peak, train::measure(options, DeviceKind::cuda).total()) << "rank " << rank;
    return result;
  }
  Outcome alone(int steps) const {
    train::Engine engine(options_of(GetParam()), DeviceKind::cuda);
    return run(engine, parallel::Mesh(), 0, steps);
  }
  Outcome together(const parallel::Mesh& mesh, int steps) const {
    std::vector<Outcome> outcomes(static_cast<std::size_t>(mesh.ranks()));
    ThreadStore store;
    run_ranks(mesh.ranks(), [&](int rank) {
      const auto device = make_device(DeviceKind::cuda, rank);
      const parallel::Groups groups =
          parallel::make_groups(mesh, rank, [&](const std::string& name, const std::vector<int>& ranks) {
            return comm::make_nccl_group(
                *device, {.name = name,
                          .rank = static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin()),
                          .size = static_cast<int>(ranks.size()),
                          .timeout_s = 60,
                          .set = [&store](const std::string& key, std::string_view value) { store.set(key, value); },
                          .get = [&store](const std::string& key) { return store.get(key); },
                          .blame = {},
                          .lost = {}});
          });
      train::EngineOptions options = options_of(GetParam());
      options.layout.mesh = mesh;
      options.rank = rank;
      train::Engine engine(options, *device, groups);
      outcomes[static_cast<std::size_t>(rank)] = run(engine, mesh, rank, steps);
    });
    for (const Outcome& outcome : outcomes) {
      EXPECT_EQ(outcome.losses, outcomes[0].losses);
      EXPECT_EQ(outcome.evaluation, outcomes[0].evaluation);
    }
    return outcomes[0];
  }
  static std::vector<parallel::Mesh> meshes() {
    std::vector<parallel::Mesh> result;
    for (const std::array<int, parallel::kAxes>& sizes :
         {std::array{1, 1, 1, 2}, std::array{1, 1, 1, 4}, std::array{1, 2, 1, 2}, std::array{1, 2, 2, 2}}) {
      const parallel::Mesh mesh(sizes);
      if (mesh.ranks() <= cuda_device_count()) result.push_back(mesh);
    }
    return result;
  }
};

TEST_P(TensorOnGpus, BeginWithTheBitsOfOne) {
  const Outcome one = alone(0);
  for (const parallel::Mesh& mesh : meshes()) EXPECT_TRUE(together(mesh, 0).weights == one.weights) << mesh.ranks() << " ranks";
}

TEST_P(TensorOnGpus, LearnAsOne) {
  const Outcome one = alone(12);
  for (const parallel::Mesh& mesh : meshes()) {
    const Outcome actual = together(mesh, 12);
    for (std::size_t step = 0; step < one.losses.size(); ++step) {
      EXPECT_NEAR(actual.losses[step], one.losses[step], 0.01 * one.losses[step]) << mesh.ranks() << " ranks, step " << step + 1;
    }
    EXPECT_NEAR(actual.evaluation[0], one.evaluation[0], 0.01 * one.evaluation[0]) << mesh.ranks() << " ranks";
    EXPECT_EQ(actual.evaluation[1], one.evaluation[1]);
  }
}

TEST_P(TensorOnGpus, RepeatToTheBit) {
  const parallel::Mesh mesh({1, 1, 1, 2});
  EXPECT_TRUE(together(mesh, 5).weights == together(mesh, 5).weights);
}

INSTANTIATE_TEST_SUITE_P(Recipes, TensorOnGpus,
                         ::testing::Values("bf16", "fp8_delayed", "fp8_current", "fp8_rowwise", "fp8_block", "mxfp8"));

}  // namespace
}  // namespace octet::testing
