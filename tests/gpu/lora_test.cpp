// Compares training of adapters beside a frozen model on the GPU with the CPU.
#include <gtest/gtest.h>

#include "gpu/codes.h"
#include "gpu/gradients.h"
#include "octet/tensor/host_tensor.h"
#include "support/near.h"
#include "support/tiny_model.h"

namespace octet::testing {
namespace {

class GpuLora : public ::testing::TestWithParam<std::string> {
 protected:
  GpuLora() {
    options = adapted(tiny_options(GetParam()));
    options.adapters.dropout = {.rate = 0.2, .seed = 21};  // the masks have the same bits on both devices
    options.model.dim = 64;
    options.model.head_dim = 16;
    options.model.ffn = 160;
    options.seq_len = 70;
    options.deterministic = true;
    tokens = random_tokens(options.seq_len * options.micro_batch_size, options.model.vocab);
  }
  train::EngineOptions options;
  Tokens tokens;
};

TEST_P(GpuLora, FrozenCodesHaveTheBitsOfTheCpuAndKeepThem) {
  const auto cpu = make_engine(options), gpu = make_engine(options, 7, DeviceKind::cuda);
  gradients(*gpu, tokens);
  gpu->apply(1e-2, 1);
  auto expected = cpu->model().parameters().parameters().begin();
  for (const parallel::Parameter& p : gpu->model().parameters().parameters()) {
    const parallel::Parameter& other = *expected++;
    if (!p.spec.frozen) continue;
    EXPECT_EQ(static_cast<bool>(p.value), !p.spec.quant) << p.spec.name;
    if (p.value) {
      EXPECT_TRUE(same_bytes(to_host(gpu->stream(), p.value).view(), other.value)) << p.spec.name;
    }
    expect_same_codes(gpu->stream(), p.codes, other.codes, p.spec.name);
  }
}

// As for a trained model (step_test.cpp): the distance from the CPU is that of the roundings.
TEST_P(GpuLora, GradientsAreAsNearAsRoundingAllows) {
  const auto cpu = make_engine(options), gpu = make_engine(options, 7, DeviceKind::cuda);
  train::EngineOptions exact_options = options;
  exact_options.recipe = recipe_named("fp64");
  const auto exact = make_engine(exact_options);
  for (train::Engine* engine : {cpu.get(), gpu.get()}) randomise_b(*engine);
  auto from = cpu->model().parameters().parameters().begin();
  for (parallel::Parameter& p : exact->model().parameters().parameters()) {
    const parallel::Parameter& other = *from++;
    const std::vector<double> values = values_of(p.spec.frozen ? p.value : other.primary());
    for (std::size_t i = 0; i < values.size(); ++i)
      p.value.as<double>()[i] = static_cast<double>(static_cast<float>(BFloat16(static_cast<float>(values[i]))));
  }
  for (std::uint32_t step = 1; step <= 2; ++step) {
    const std::vector<double> on_cpu = gradients(*cpu, tokens), on_gpu = gradients(*gpu, tokens),
                              truth = gradients(*exact, tokens);
    EXPECT_LE(distance(on_gpu, on_cpu), 1.5 * distance(on_cpu, truth)) << "step " << step;
    EXPECT_LE(distance(on_gpu, truth), 1.25 * distance(on_cpu, truth)) << "step " << step;
    for (train::Engine* engine : {cpu.get(), gpu.get()}) engine->apply(0.0, step);
  }
}

TEST_P(GpuLora, TakesThePlannedMemoryAndRepeatsInEveryCheckpointingMode) {
  std::vector<double> expected;
  for (const nn::Checkpointing mode : {nn::Checkpointing::none, nn::Checkpointing::selective, nn::Checkpointing::full}) {
    options.checkpointing = mode;
    const auto gpu = make_engine(options, 7, DeviceKind::cuda);
    gradients(*gpu, tokens);
    gpu->apply(1e-3, 1);
    const std::vector<double> actual = gradients(*gpu, tokens);
    if (expected.empty()) expected = actual;
    EXPECT_EQ(distance(actual, expected), 0.0) << "mode " << static_cast<int>(mode);
    EXPECT_EQ(gpu->device().memory().total_peak, train::measure(options, DeviceKind::cuda).total());
  }
}

INSTANTIATE_TEST_SUITE_P(Recipes, GpuLora,
                         ::testing::Values("bf16", "fp8_delayed", "fp8_current", "fp8_rowwise", "fp8_block", "mxfp8"));

}  // namespace
}  // namespace octet::testing
