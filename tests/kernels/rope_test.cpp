#include "octet/kernels/rope/rope.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <vector>

#include "kernels/op_fixture.h"
#include "support/bounds.h"
#include "support/grad_check.h"

namespace octet::kernels {
namespace {

using testing::compute_roundoff;
using testing::near;
using testing::storage_roundoff;
using testing::values_of;

// The values were made with LlamaRotaryEmbedding of transformers 5.23 and torch 2.15 on a CPU. All bits must be equal.
TEST(RopeTable, InverseFrequenciesAreTransformers) {
  const std::vector<float> plain = {0x1p+0f,        0x1.43d136p-2f, 0x1.99999ap-4f,  0x1.030dc6p-5f,
                                    0x1.47ae14p-7f, 0x1.9e7c7p-9f,  0x1.0624dep-10f, 0x1.4b96cp-12f};
  EXPECT_EQ(rope_inverse_frequencies(16, 10000.0, {}), plain);
  const std::vector<float> odd_half = {0x1p+0f, 0x1.44960cp-3f, 0x1.9b8c26p-6f, 0x1.04e748p-8f, 0x1.4acda8p-11f};
  EXPECT_EQ(rope_inverse_frequencies(10, 10000.0, {}), odd_half);
  const std::vector<float> llama3 = {0x1p+0f,         0x1.571288p-2f,  0x1.cbc2aap-4f,  0x1.34119p-5f,
                                     0x1.9cd9d2p-7f,  0x1.14a2e4p-8f,  0x1.132ba4p-11f, 0x1.f0d27p-15f,
                                     0x1.4ce6ecp-16f, 0x1.be2188p-18f, 0x1.2aefa4p-19f, 0x1.909caap-21f};
  EXPECT_EQ(rope_inverse_frequencies(
                24, 500000.0,
                RopeScalingLlama3{.factor = 8, .low_freq_factor = 1, .high_freq_factor = 4, .original_max_position = 8192}),
            llama3);
  const std::vector<float> factor5 = {0x1p+0f,        0x1.43d136p-2f,  0x1.99999ap-4f, 0x1.030dc6p-5f,
                                      0x1.47ae14p-7f, 0x1.5ff9fap-11f, 0x1.a36e3p-13f, 0x1.094566p-14f};
  EXPECT_EQ(rope_inverse_frequencies(
                16, 10000.0,
                RopeScalingLlama3{.factor = 5, .low_freq_factor = 1, .high_freq_factor = 3, .original_max_position = 2048}),
            factor5);
}

// The same check for Llama 3.1 8B (K 128, factor 8) and Llama 3.2 1B (K 64, factor 32). The checksum is sum (i + 1) *
// bits(inv_freq[i]).
TEST(RopeTable, PublishedModelsInEveryBit) {
  const auto checksum = [](std::int64_t head_dim, double factor) {
    std::uint64_t sum = 0, i = 0;
    for (const float f : rope_inverse_frequencies(head_dim, 500000.0, RopeScalingLlama3{.factor = factor})) {
      sum += ++i * std::bit_cast<std::uint32_t>(f);
    }
    return sum;
  };
  EXPECT_EQ(checksum(128, 8), 1959503164280u);
  EXPECT_EQ(checksum(64, 32), 492273033647u);
}

// The same checksum of YaRN, from transformers 5.24: the factor that Qwen publishes, and a scaling with all its settings.
TEST(RopeTable, YarnIsTransformersInEveryBit) {
  const auto checksum = [](std::int64_t head_dim, double theta, const RopeScalingYarn& yarn) {
    std::uint64_t sum = 0, i = 0;
    for (const float f : rope_inverse_frequencies(head_dim, theta, yarn)) sum += ++i * std::bit_cast<std::uint32_t>(f);
    return sum;
  };
  EXPECT_EQ(checksum(128, 5e5, {.factor = 4, .original_max_position = 32768}), 1974348538670u);
  EXPECT_EQ(checksum(64, 1e4, {.factor = 8, .original_max_position = 4096, .beta_fast = 16, .beta_slow = 2, .truncate = false}),
            515398122756u);
  const std::vector<float> plain = rope_table(8, 10000.0, {}, 3),
                           sharper = rope_table(8, 10000.0, RopeScalingYarn{.attention_factor = 1.5}, 3);
  EXPECT_EQ(sharper.front(), 1.5f) << "cos 0";
  EXPECT_EQ(sharper.size(), plain.size());
}

// transformers bounds the ramp by the indices 0 and dims - 1. Here all frequencies turn more often than beta_slow within the
// original length, and less often than beta_fast, so the ramp runs from 0 to 7 whatever their numbers of turns.
TEST(RopeTable, YarnsRampEndsAtTheLastDim) {
  const std::vector<float> plain = rope_inverse_frequencies(8, 10.0, {});
  const std::vector<float> yarn = rope_inverse_frequencies(
      8, 10.0, RopeScalingYarn{.factor = 4, .original_max_position = 100'000, .beta_fast = 1e5, .beta_slow = 1});
  for (std::size_t i = 0; i < 4; ++i) {
    const double kept = 1 - static_cast<double>(i) / 7, expected = plain[i] * (kept + (1 - kept) / 4);
    EXPECT_NEAR(yarn[i], expected, 4 * kUnitRoundoffF32 * expected) << i;
  }
}

TEST(RopeTable, RowsAreCosThenSinOfTheFp32Angle) {
  const std::vector<float> frequencies = rope_inverse_frequencies(16, 10000.0, {});
  const std::vector<float> table = rope_table(16, 10000.0, {}, 1001);
  ASSERT_EQ(table.size(), 1001u * 16u);
  // The cosines at position 1000, from the same module. torch's cosine and Octet's are each within one ulp.
  const std::vector<float> cos_1000 = {0x1.1ff026p-1f,  -0x1.e8dbp-2f,   0x1.b981dcp-1f, 0x1.f515dcp-1f,
                                       -0x1.ad9ac8p-1f, -0x1.ffe3f6p-1f, 0x1.14a282p-1f, 0x1.e69cd4p-1f};
  for (std::size_t i = 0; i < 8; ++i) {
    EXPECT_NEAR(table[1000 * 16 + i], cos_1000[i], 2 * kUnitRoundoffF32 * std::abs(cos_1000[i]));
    EXPECT_EQ(table[i], 1.0f);
    EXPECT_EQ(table[8 + i], 0.0f);
    const double angle = static_cast<double>(77.0f * frequencies[i]);
    EXPECT_EQ(table[77 * 16 + 8 + i], static_cast<float>(std::sin(angle)));
  }
}

struct RopeTest : testing::OpTest {
  Tensor table(std::int64_t head_dim, std::int64_t count) {
    const std::vector<float> values = rope_table(head_dim, 10000.0, {}, count);
    const Tensor result = zeros(DType::f32, {count, head_dim});
    std::copy(values.begin(), values.end(), result.as<float>());
    return result;
  }
};

TEST_F(RopeTest, RotatesHalvesOfStridedRows) {
  for (const DType dtype : testing::kFloatTypes) {
    for (const auto& [k, r] : std::vector<std::pair<std::int64_t, std::int64_t>>{{2, 2}, {24, 24}, {80, 80}, {24, 6}, {80, 2}}) {
      const std::int64_t heads = 3;
      const Tensor packed = random(dtype, {5, heads * k + 7});
      const Tensor before = copy(packed);
      const Tensor positions = integers({9, 0, 3, 3, 1}), cos_sin = table(r, 10);
      rope(*stream, scratch,
           {.x = packed.slice_cols(4, 4 + heads * k), .head_dim = k, .rotary_dim = r, .table = cos_sin, .positions = positions});
      std::vector<double> expected = values_of(before), size = expected;
      const auto x = values_of(before), cs = values_of(cos_sin);
      const std::size_t width = static_cast<std::size_t>(heads * k + 7), head = static_cast<std::size_t>(k),
                        half = static_cast<std::size_t>(r / 2);
      for (std::size_t t = 0; t < 5; ++t) {
        const auto row = static_cast<std::size_t>(positions.as<std::int32_t>()[t]) * 2 * half;
        for (std::size_t h = 0; h < heads; ++h) {
          for (std::size_t i = 0; i < half; ++i) {
            const std::size_t a = t * width + 4 + h * head + i, b = a + half;
            const double c = cs[row + i], s = cs[row + half + i];
            expected[a] = x[a] * c - x[b] * s;
            expected[b] = x[b] * c + x[a] * s;
            size[a] = std::abs(x[a] * c) + std::abs(x[b] * s);
            size[b] = std::abs(x[b] * c) + std::abs(x[a] * s);
          }
        }
      }
      // The bound covers two products, one sum and one rounding. Columns outside the slice and the dims that are not rotated must
      // not change.
      EXPECT_TRUE(near(
          values_of(packed), expected,
          [&](std::size_t i) {
            const std::size_t column = i % width;
            if (column < 4 || column >= width - 3 || (column - 4) % head >= 2 * half) return 0.0;
            return gamma(2, compute_roundoff(dtype)) * size[i] + storage_roundoff(dtype) * std::abs(expected[i]);
          },
          static_cast<std::int64_t>(width)))
          << name_of(dtype) << " K " << k << " R " << r;
    }
  }
}

TEST_F(RopeTest, BackwardIsTheDerivative) {
  const std::int64_t k = 10, r = 6, heads = 2, rows = 4;
  const Tensor x = random(DType::f64, {rows, heads * k}), gy = random(DType::f64, {rows, heads * k});
  const Tensor cos_sin = table(r, 50), positions = integers({0, 1, 49, 20});
  const Tensor gradient = copy(gy);
  rope(*stream, scratch,
       {.x = gradient,
        .head_dim = k,
        .rotary_dim = r,
        .table = cos_sin,
        .positions = positions,
        .direction = Rope::Direction::backward});
  const auto f = [&] {
    const Tensor y = copy(x);
    rope(*stream, scratch, {.x = y, .head_dim = k, .rotary_dim = r, .table = cos_sin, .positions = positions});
    double sum = 0;
    for (std::int64_t i = 0; i < y.elements(); ++i) sum += y.as<double>()[i] * gy.as<double>()[i];
    return sum;
  };
  EXPECT_TRUE(testing::gradient_agrees(
      {.name = "x", .x = x.as<double>(), .gradient = gradient.as<double>(), .count = x.elements(), .f = f}));
}

TEST_F(RopeTest, BitsDoNotDependOnThreads) {
  const Tensor x = random(DType::bf16, {333, 64}), cos_sin = table(16, 333);
  std::vector<std::int32_t> order(333);
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::int32_t>(i * 7 % 333);
  const Tensor positions = integers(order);
  expect_same_for_any_threads([&] {
    const Tensor y = copy(x);
    rope(*stream, scratch, {.x = y, .head_dim = 16, .table = cos_sin, .positions = positions});
    return std::vector<Tensor>{y};
  });
}

TEST_F(RopeTest, RefusesPositionsBeyondTheTable) {
  const Tensor x = random(DType::f32, {2, 16}), cos_sin = table(16, 8), before = copy(x);
  expect_refusal(
      [&] {
        rope(*stream, scratch, {.x = x, .head_dim = 16, .table = cos_sin, .positions = integers({0, 8})});
      },
      "position 8 of token 1");
  expect_refusal(
      [&] {
        rope(*stream, scratch, {.x = x, .head_dim = 16, .table = cos_sin, .positions = integers({-1, 0})});
      },
      "position -1");
  expect_refusal(
      [&] {
        rope(*stream, scratch, {.x = x, .head_dim = 12, .table = cos_sin, .positions = integers({0, 1})});
      },
      "heads * 12");
  for (const std::int64_t dims : {3, 18}) {
    expect_refusal(
        [&] {
          rope(*stream, scratch, {.x = x, .head_dim = 16, .rotary_dim = dims, .table = cos_sin, .positions = integers({0, 1})});
        },
        concat(dims, " dims to rotate of heads of 16"));
  }
  expect_refusal(
      [&] {
        rope(*stream, scratch, {.x = x, .head_dim = 16, .rotary_dim = 4, .table = cos_sin, .positions = integers({0, 1})});
      },
      "table must be F32 [positions, 4]");
  EXPECT_TRUE(testing::same_bytes(x, before));
  EXPECT_THROW(rope_inverse_frequencies(7, 10000.0, {}), Error);
}

}  // namespace
}  // namespace octet::kernels
