#include "octet/nn/head_loss.h"

#include <cmath>

#include "nn/layer_fixture.h"
#include "support/bounds.h"

namespace octet::nn {
namespace {

using testing::values_of;

struct HeadLossLayer : testing::LayerTest {
  void make(const Recipe& of, std::int64_t vocab, std::int64_t dim) {
    use(of);
    head =
        std::make_unique<HeadLoss>(HeadLoss::Options{.vocab = vocab, .dim = dim, .init_std = 0.5}, recipe, *parameters, *scales);
    materialise({&head->head().weights()[0]});
  }
  std::unique_ptr<HeadLoss> head;
};

TEST_F(HeadLossLayer, TheGradientIsThatOfTheSum) {
  make(testing::fp64_recipe(), 13, 10);
  const Tensor h = random(DType::f64, {8, 10}), gh = random(DType::f64, {8, 10});
  const Tensor targets = integers({0, 12, -100, 3, 3, -100, 7, 5});
  const auto loss = [&] {
    double total[2] = {0, 0};
    head->loss(scope(), h, targets, total);
    EXPECT_EQ(total[1], 6);
    return total[0];
  };
  double total[2] = {100, 1000};  // loss() adds to these values
  head->loss(scope(), h, targets, total, gh);
  EXPECT_NEAR(total[0] - 100, loss(), 1e-12 * loss());
  EXPECT_EQ(total[1], 1006);
  EXPECT_EQ(stash.used(), 0u);
  EXPECT_EQ(scratch.used(), 0u);
  expect_gradient("h", h, gh, loss);
  const Tensor& gw = head->head().weight().grad;
  expect_gradient("weight", head->head().weight().value, copy(gw), loss);
  expect_doubled(gw, [&] { head->loss(adding(scope()), h, targets, total, gh); });
  for (std::int64_t i = 0; i < 10; ++i) {
    EXPECT_EQ(gh.as<double>()[2 * 10 + i], 0) << "an ignored target";
  }
}

TEST_F(HeadLossLayer, LogitsAreTheHeadsProduct) {
  make(testing::fp64_recipe(), 13, 10);
  const Tensor h = random(DType::f64, {8, 10}), logits = zeros(DType::f64, {8, 13});
  head->logits(scope(), h, logits);
  const auto x = values_of(h), w = values_of(head->head().weight().value);
  std::vector<double> expected(8 * 13);
  for (std::size_t t = 0; t < 8; ++t) {
    for (std::size_t v = 0; v < 13; ++v) {
      for (std::size_t i = 0; i < 10; ++i) expected[t * 13 + v] += x[t * 10 + i] * w[v * 10 + i];
    }
  }
  EXPECT_TRUE(testing::near(values_of(logits), expected, [](std::size_t) { return gamma(10, kUnitRoundoffF64) * 10 * 16; }));
}

// The vocabulary is so large that the logits exist for only 128 tokens at a time.
TEST_F(HeadLossLayer, ChunksOfTokensAddUp) {
  constexpr std::int64_t kVocab = (1 << 17) + 16, kTokens = 150, kDim = 2;
  make(recipes::make_recipe("fp32", {}), kVocab, kDim);
  const Tensor h = random(DType::f32, {kTokens, kDim}), gh = zeros(DType::f32, {kTokens, kDim});
  std::vector<std::int32_t> ids;
  for (std::int32_t t = 0; t < kTokens; ++t) ids.push_back(t % 7 == 3 ? -100 : t * 871);
  Arena room(*device, MemoryCategory::workspace, std::size_t{1} << 28);
  Scope s{.stream = *stream,
          .stash = stash,
          .scratch = room,
          .dtype = DType::f32,
          .context = *alone,
          .tensor = *alone,
          .expert = *alone};
  double total[2] = {0, 0};
  head->loss(s, h, integers(ids), total, gh);
  EXPECT_LT(room.high_water(), sizeof(float) * static_cast<std::size_t>(kVocab * kTokens)) << "the logits exist whole";

  const float* w = head->head().weight().value.as<float>();
  double sum = 0, count = 0;
  std::vector<double> expected;
  for (std::int64_t t = 0; t < kTokens; ++t) {
    const double x[2] = {static_cast<double>(h.as<float>()[t * 2]), static_cast<double>(h.as<float>()[t * 2 + 1])};
    const std::int32_t target = ids[static_cast<std::size_t>(t)];
    if (target < 0) {
      expected.insert(expected.end(), {0.0, 0.0});
      continue;
    }
    double partition = 0, mean[2] = {0, 0};
    for (std::int64_t v = 0; v < kVocab; ++v) {
      const double e = std::exp(x[0] * static_cast<double>(w[v * 2]) + x[1] * static_cast<double>(w[v * 2 + 1]));
      partition += e;
      for (int i = 0; i < 2; ++i) mean[i] += e * static_cast<double>(w[v * 2 + i]);
    }
    sum += std::log(partition);
    for (int i = 0; i < 2; ++i) {
      const double weight = static_cast<double>(w[target * 2 + i]);
      sum -= x[i] * weight;
      expected.push_back(mean[i] / partition - weight);
    }
    ++count;
  }
  EXPECT_EQ(total[1], count);
  // Each loss comes from a sum of 131,088 exponentials of FP32 logits and is then rounded to FP32.
  EXPECT_NEAR(total[0], sum, gamma(64, kUnitRoundoffF32) * sum);
  EXPECT_TRUE(testing::near_norm(values_of(gh), expected, gamma(1024, kUnitRoundoffF32)));
}

TEST_F(HeadLossLayer, ComputesInBf16UnlessTheRecipeIsAskedFor) {
  make(recipes::make_recipe("fp8_block", {}), 32, 32);
  EXPECT_EQ(head->head().weights()[0].compute(), Compute::bf16);
  EXPECT_FALSE(head->head().weight().spec.quant);
  make(recipes::make_recipe("fp8_block", {.head = "recipe"}), 32, 32);
  EXPECT_EQ(head->head().weights()[0].compute(), Compute::fp8);
  make(recipes::make_recipe("fp32", {.head = "bf16"}), 32, 32);
  EXPECT_EQ(head->head().weights()[0].compute(), Compute::fp32);
}

}  // namespace
}  // namespace octet::nn
