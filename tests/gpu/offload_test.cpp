// Optimizer states in page-locked host memory give the bits of states in GPU memory.
#include <gtest/gtest.h>

#include "octet/device/cuda/cuda_device.h"
#include "support/mesh_run.h"

namespace octet::testing {
namespace {

RunState after_steps(const train::EngineOptions& options) {
  RunState state;
  on_engines(
      options, {},
      [&](train::Engine& engine, const parallel::Groups&) {
        const Taken taken = take(engine, {.count = 3, .micro_batches = 2});
        engine.settle();
        state.add(engine, taken);
      },
      DeviceKind::cuda);
  return state;
}

class OffloadOnGpu : public ::testing::TestWithParam<std::string> {};

TEST_P(OffloadOnGpu, GivesTheSameBits) {
  if (cuda_device_count() < 1) GTEST_SKIP() << "needs a GPU";
  for (const bool narrow : {false, true}) {
    SCOPED_TRACE(narrow ? "BF16 states" : "FP32 states");
    train::EngineOptions options = tiny_options(GetParam());
    options.model.dim = 64;
    options.model.head_dim = 16;
    options.model.ffn = 128;
    options.model.vocab = 64;
    options.seq_len = 128;
    options.deterministic = true;
    options.storage.master_weights = !narrow;
    if (narrow) options.storage.moments = DType::bf16;
    const RunState on_device = after_steps(options);
    options.storage.offload_slot = 16384;
    expect_same_bits(after_steps(options), on_device);
  }
}

INSTANTIATE_TEST_SUITE_P(Recipes, OffloadOnGpu, ::testing::Values("bf16", "fp8_delayed", "fp8_current", "fp8_rowwise"));

}  // namespace
}  // namespace octet::testing
