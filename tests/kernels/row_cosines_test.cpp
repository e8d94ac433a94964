#include "octet/kernels/row_cosines/row_cosines.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/op_fixture.h"

namespace octet::kernels {
namespace {

struct RowCosinesTest : testing::OpTest {};

TEST_F(RowCosinesTest, AreTheFormula) {
  for (const DType dtype : {DType::bf16, DType::f32, DType::f64}) {
    const std::int64_t pairs = 37, cols = 131;
    const Tensor x = random(dtype, {2 * pairs, cols}), y = zeros(DType::f32, {pairs});
    row_cosines(*stream, {.x = x, .y = y});
    std::vector<double> values = testing::values_of(x);
    if (dtype == DType::f32) {
      for (double& value : values) value = static_cast<double>(static_cast<float>(BFloat16(static_cast<float>(value))));
    }
    for (std::int64_t pair = 0; pair < pairs; ++pair) {
      double dot = 0, of_a = 0, of_b = 0;
      for (std::int64_t i = 0; i < cols; ++i) {
        const double a = values[static_cast<std::size_t>(pair * cols + i)],
                     b = values[static_cast<std::size_t>((pairs + pair) * cols + i)];
        dot += a * b;
        of_a += a * a;
        of_b += b * b;
      }
      EXPECT_NEAR(y.as<float>()[pair], std::abs(dot) / std::sqrt(of_a * of_b), 1e-7) << pair;
    }
  }
}

TEST_F(RowCosinesTest, OfParallelAntiparallelAndZeroRows) {
  const Tensor x = filled(DType::f32, {6, 2}, [](std::int64_t i) {
    return std::vector<double>{1, 2, 3, -1, 5, 5, 2, 4, -6, 2, 0, 0}[static_cast<std::size_t>(i)];
  });
  const Tensor y = zeros(DType::f32, {3});
  row_cosines(*stream, {.x = x, .y = y});
  EXPECT_NEAR(y.as<float>()[0], 1, 1e-7);
  EXPECT_NEAR(y.as<float>()[1], 1, 1e-7);
  EXPECT_EQ(y.as<float>()[2], 0);
}

}  // namespace
}  // namespace octet::kernels
