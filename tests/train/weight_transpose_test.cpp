// Without the transpose cache, backward transposes weights when it reads them. The bits are the same and the memory is less. Codes
// with one scale are never transposed on a CPU.
#include <gtest/gtest.h>

#include "support/tiny_model.h"

namespace octet::testing {
namespace {

class WeightTranspose : public ::testing::TestWithParam<std::string> {};

TEST_P(WeightTranspose, NotCachedGivesTheSameBitsInLessMemory) {
  train::EngineOptions options = tiny_options(GetParam());
  const Tokens tokens = random_tokens(options.seq_len * options.micro_batch_size, options.model.vocab);
  const auto trained = [&](bool cached) {
    options.recipe.weight_transpose_cache = cached;
    const auto engine = make_engine(options);
    for (std::uint32_t step = 1; step <= 3; ++step) {
      engine->begin_step();
      engine->forward_backward(tokens.batch(), nullptr);
      engine->apply(1e-2, step);
    }
    std::vector<std::vector<std::uint8_t>> weights;
    for (const parallel::Parameter& p : engine->model().parameters().parameters())
      weights.push_back(bytes_of_tensor(p.primary()));
    EXPECT_EQ(engine->device().memory().total_peak, train::measure(options, DeviceKind::cpu).total());
    return std::pair(weights, engine->device().memory().peak[static_cast<std::size_t>(MemoryCategory::weights)]);
  };
  const auto [expected, whole] = trained(true);
  const auto [actual, less] = trained(false);
  EXPECT_EQ(actual, expected);
  if (options.recipe.w.tile == ScaleTile::tensor) {
    EXPECT_EQ(whole, less);
    return;
  }
  // One byte for each weight of the two layers' linears, and the transposed scales.
  const std::size_t linears = 2 * (32 * (32 + 2 * 16) + 32 * 32 + 3 * 32 * 48);
  EXPECT_GE(whole - less, linears);
  EXPECT_LT(whole - less, linears + 4096);
}

INSTANTIATE_TEST_SUITE_P(Recipes, WeightTranspose, ::testing::Values("fp8_delayed", "fp8_current", "fp8_block"));

}  // namespace
}  // namespace octet::testing
