#include "octet/kernels/channel_amaxes/channel_amaxes.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/op_fixture.h"

namespace octet::kernels {
namespace {

struct ChannelAmaxesTest : testing::OpTest {};

TEST_F(ChannelAmaxesTest, AreTheFormula) {
  for (const DType dtype : {DType::bf16, DType::f32, DType::f64}) {
    const std::int64_t rows = 37, cols = 531;
    const Tensor x = random(dtype, {rows, cols}), y = random(DType::f32, {cols});
    channel_amaxes(*stream, {.x = x, .y = y});
    const std::vector<double> values = testing::values_of(x);
    for (std::int64_t c = 0; c < cols; ++c) {
      float amax = 0;
      for (std::int64_t row = 0; row < rows; ++row) {
        const auto value = static_cast<float>(values[static_cast<std::size_t>(row * cols + c)]);
        amax = std::max(amax, std::fabs(static_cast<float>(BFloat16(value))));
      }
      ASSERT_EQ(y.as<float>()[c], amax) << c;
    }
  }
}

TEST_F(ChannelAmaxesTest, LeavesOutNanAndHasZeroWithoutRows) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN(), kInf = std::numeric_limits<double>::infinity();
  const Tensor x = filled(DType::f32, {2, 3}, [](std::int64_t i) {
    return std::vector<double>{kNan, -2, -kInf, 1, kNan, 3}[static_cast<std::size_t>(i)];
  });
  const Tensor y = random(DType::f32, {3});
  channel_amaxes(*stream, {.x = x, .y = y});
  EXPECT_EQ(y.as<float>()[0], 1);
  EXPECT_EQ(y.as<float>()[1], 2);
  EXPECT_TRUE(std::isinf(y.as<float>()[2]));
  channel_amaxes(*stream, {.x = x.slice_rows(0, 0), .y = y});
  for (int c = 0; c < 3; ++c) EXPECT_EQ(y.as<float>()[c], 0);
}

}  // namespace
}  // namespace octet::kernels
