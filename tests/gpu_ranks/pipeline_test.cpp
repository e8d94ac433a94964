// Stages on the GPUs of one machine have the bits of one GPU. Ranks are threads of this process.
#include <gtest/gtest.h>

#include "octet/device/cuda/cuda_device.h"
#include "support/mesh_run.h"

namespace octet::testing {
namespace {

class PipelineOnGpus : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (cuda_device_count() < 2) GTEST_SKIP() << "needs 2 GPUs; this machine has " << cuda_device_count();
  }
  static RunState together(const parallel::Mesh& mesh, int experts = 0) {
    train::EngineOptions options = tiny_options(GetParam());
    options.model.layers = 4;
    options.model.dim = 64;
    options.model.head_dim = 16;
    options.model.ffn = 128;
    options.model.vocab = 64;
    options.model.experts = experts;
    options.model.experts_per_token = experts / 2;
    options.seq_len = 128;
    options.deterministic = true;
    options.optimizer.max_grad_norm = 0;  // stages add the norm up in another order
    RunState state;
    std::mutex mutex;
    on_engines(
        options, {.mesh = mesh},
        [&](train::Engine& engine, const parallel::Groups&) {
          const Taken taken = take(engine, {.count = 3, .micro_batches = 4});
          engine.settle();
          const std::lock_guard lock(mutex);
          state.add(engine, taken);
        },
        DeviceKind::cuda);
    state.gradients.expect_whole();
    return state;
  }
};

TEST_P(PipelineOnGpus, HasTheBitsOfOneGpu) {
  for (const int experts : {0, 4}) {
    const RunState one = together(parallel::Mesh(), experts);
    for (const int chunks : {1, 2}) {
      SCOPED_TRACE(concat(experts, " experts, ", chunks, " chunks"));
      RunState stages = together(parallel::Mesh({1, 1, 1, 1}, 1, {.count = 2, .chunks = chunks}), experts);
      EXPECT_NEAR(stages.taken.norm, one.taken.norm, 1e-6 * one.taken.norm);
      stages.taken.norm = one.taken.norm;
      expect_same_bits(stages, one);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Recipes, PipelineOnGpus, ::testing::Values("bf16", "fp8_delayed", "fp8_rowwise", "fp8_block"));

}  // namespace
}  // namespace octet::testing
