#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "octet/kernels/quantize/quantize.h"
#include "support/bounds.h"

namespace octet::kernels {
namespace {

class DelayedScalesTest : public ::testing::Test {
 protected:
  DelayedScalesTest() : device_(make_device(DeviceKind::cpu)), stream_(device_->make_stream()) {}

  // Each row of `history` belongs to one tensor.
  void update(std::vector<std::vector<float>>& history, std::vector<float>& scale, std::vector<std::uint8_t> format,
              std::vector<std::uint8_t> is_weight, int margin = 0, bool most_recent = false, const float* found_inf = nullptr) {
    const auto n = static_cast<std::int64_t>(history.size()), length = static_cast<std::int64_t>(history[0].size());
    std::vector<float> flat;
    for (const auto& row : history) flat.insert(flat.end(), row.begin(), row.end());
    update_delayed_scales(*stream_, {.amax_history = Tensor(flat.data(), DType::f32, {n, length}),
                                     .scale = Tensor(scale.data(), DType::f32, {n}),
                                     .format = Tensor(format.data(), DType::u8, {n}),
                                     .is_weight = Tensor(is_weight.data(), DType::u8, {n}),
                                     .margin = margin,
                                     .most_recent = most_recent,
                                     .found_inf = found_inf});
    for (std::size_t i = 0; i < history.size(); ++i) {
      std::copy_n(flat.begin() + static_cast<std::ptrdiff_t>(i) * length, length, history[i].begin());
    }
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
};

using Rows = std::vector<std::vector<float>>;

TEST_F(DelayedScalesTest, TakesTheLargestOfHistoryAndShifts) {
  Rows history = {{2, 7, 1}, {3, 1, 0}};
  std::vector<float> scale = {1, 1};
  update(history, scale, {0, 1}, {0, 1});
  EXPECT_EQ(scale, (std::vector<float>{448.0f / 7, 57344.0f / 3}));
  EXPECT_EQ(history, (Rows{{0, 2, 7}, {0, 3, 1}}));
}

TEST_F(DelayedScalesTest, MostRecentLooksAtThisStepAlone) {
  Rows history = {{2, 7, 1}};
  std::vector<float> scale = {1};
  update(history, scale, {0}, {0}, 3, true);
  EXPECT_EQ(scale[0], 56.0f / 2);
  EXPECT_EQ(history, (Rows{{0, 2, 7}}));
}

TEST_F(DelayedScalesTest, WorksWithAHistoryOfOne) {
  Rows history = {{4}};
  std::vector<float> scale = {1};
  update(history, scale, {0}, {0});
  EXPECT_EQ(scale[0], 112.0f);
  EXPECT_EQ(history, (Rows{{0}}));
}

TEST_F(DelayedScalesTest, AZeroOrNonFiniteAmaxIsNotEntered) {
  for (const float amax : {0.0f, HUGE_VALF, std::nanf("")}) {
    Rows history = {{amax, 7, 1}};
    std::vector<float> scale = {5};
    update(history, scale, {0}, {0});
    EXPECT_EQ(scale[0], 5.0f);
    EXPECT_EQ(history, (Rows{{0, 7, 1}})) << amax;
  }
}

TEST_F(DelayedScalesTest, ASkippedStepMovesNothingAndKeepsTheWeightsOwnAmax) {
  const float found_inf = 1, none = 0;
  Rows history = {{2, 7, 1}, {3, 4, 5}};
  std::vector<float> scale = {5, 6};
  update(history, scale, {0, 0}, {0, 1}, 0, false, &found_inf);
  EXPECT_EQ(scale, (std::vector<float>{5, 6}));
  EXPECT_EQ(history, (Rows{{0, 7, 1}, {3, 4, 5}}));
  update(history, scale, {0, 0}, {0, 1}, 0, false, &none);
  EXPECT_EQ(scale, (std::vector<float>{5, 448.0f / 5}));
  EXPECT_EQ(history, (Rows{{0, 7, 1}, {0, 3, 4}}));
}

TEST_F(DelayedScalesTest, AnInfiniteScaleBecomesTheLargestFloat) {
  Rows history = {{1e-40f, 0}};
  std::vector<float> scale = {1};
  update(history, scale, {0}, {0});
  EXPECT_EQ(scale[0], std::numeric_limits<float>::max());
}

// Computes the expected samples of a small tensor by hand.
TEST(QuantizeHealth, CountsSaturatedFlushedAndNoise) {
  const std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
  const std::unique_ptr<Stream> stream = device->make_stream();
  Arena scratch(*device, MemoryCategory::workspace, 1 << 16);
  // In E4M3 at scale 2, 1000 saturates to 448 / 2, 2^-12 is flushed to zero, and 1 and -2 are exact. The zero does not count as
  // flushed.
  std::vector<float> x = {1000, 0x1p-12f, 1, -2, 0, HUGE_VALF};
  std::vector<std::uint8_t> codes(6);
  float scale_inv = 0, amax = 0;
  const float scale = 2;
  const Quantized q{.format = Fp8Format::e4m3,
                    .tile = ScaleTile::tensor,
                    .rowwise = Tensor(codes.data(), DType::f8_e4m3, {2, 3}),
                    .rowwise_scale_inv = Tensor(&scale_inv, DType::f32, {1}),
                    .columnwise = {},
                    .columnwise_scale_inv = {}};
  const Tensor source(x.data(), DType::f32, {2, 3});
  const QuantSpec spec{.source = ScaleSource::history};
  quantize(*stream, scratch, {.x = source, .spec = spec, .out = q, .scale = &scale, .amax = &amax});
  float out[kHealthValues];
  quantize_health(*stream, scratch, {.x = source, .q = q, .out = out});
  EXPECT_EQ(out[0], HUGE_VALF);
  EXPECT_EQ(out[1], 2.0f);
  EXPECT_FLOAT_EQ(out[2], 2.0f / 6);  // 1000 and infinity are saturated
  EXPECT_FLOAT_EQ(out[3], 1.0f / 5);  // one of the five values that are not zero is flushed
  const double signal = 1000.0 * 1000 + 0x1p-24 + 1 + 4, noise = 776.0 * 776 + 0x1p-24;
  EXPECT_FLOAT_EQ(out[4], static_cast<float>(10 * std::log10(signal / noise)));
  const double fourth = 1e12 + 0x1p-48 + 1 + 16;  // four elements are finite and not zero
  EXPECT_FLOAT_EQ(out[5], static_cast<float>(4 * fourth / (signal * signal)));
  EXPECT_FLOAT_EQ(out[6], static_cast<float>(std::sqrt(signal / 4)));
}

TEST(QuantizeHealth, TheLargestElementOfACurrentScalingIsNotSaturated) {
  const std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
  const std::unique_ptr<Stream> stream = device->make_stream();
  Arena scratch(*device, MemoryCategory::workspace, 1 << 16);
  for (const ScaleTile tile :
       {ScaleTile::tensor, ScaleTile::row, ScaleTile::block_1x128, ScaleTile::block_128x128, ScaleTile::mx_1x32}) {
    std::vector<float> x(40 * 150);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = std::sin(static_cast<float>(i) * 0.37f) * static_cast<float>(1 + i % 1000);
    std::vector<std::uint8_t> codes(x.size());
    std::vector<float> scales(400);
    const Quantized q{.format = Fp8Format::e4m3,
                      .tile = tile,
                      .rowwise = Tensor(codes.data(), DType::f8_e4m3, {40, 150}),
                      .rowwise_scale_inv = Tensor(scales.data(), scale_dtype(tile), scale_shape(tile, 40, 150)),
                      .columnwise = {},
                      .columnwise_scale_inv = {}};
    const Tensor source(x.data(), DType::f32, {40, 150});
    quantize(*stream, scratch, {.x = source, .spec = {.tile = tile}, .out = q});
    float out[kHealthValues];
    quantize_health(*stream, scratch, {.x = source, .q = q, .out = out});
    EXPECT_EQ(out[2], 0.0f) << static_cast<int>(tile);
    const Band noise = rounding_noise(unit_roundoff(Fp8Format::e4m3));
    const double relative = std::pow(10.0, -static_cast<double>(out[4]) / 20);
    EXPECT_GT(relative, noise.low / 2) << static_cast<int>(tile);
    EXPECT_LT(relative, noise.high * 2) << static_cast<int>(tile);
  }
}

}  // namespace
}  // namespace octet::kernels
