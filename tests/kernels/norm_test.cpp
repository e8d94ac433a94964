#include "octet/kernels/norm/norm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernels/op_fixture.h"
#include "support/bounds.h"

namespace octet::kernels {
namespace {

using testing::values_of;

struct NormTest : testing::OpTest {};

TEST_F(NormTest, SumsSquaresInF64AndAdds) {
  for (const DType dtype : testing::kFloatTypes) {
    for (const std::int64_t count : {1, 31, 1000, 100001}) {
      const Tensor x = random(dtype, {count}), total = zeros(DType::f64, {1});
      total.as<double>()[0] = 3;
      sum_squares(*stream, scratch, {.x = {*device, {x}}, .total = total.as<double>()});
      long double expected = 3;
      for (const double value : values_of(x)) expected += static_cast<long double>(value) * static_cast<long double>(value);
      const double bound = gamma(static_cast<double>(count) + 2, kUnitRoundoffF64) * static_cast<double>(expected);
      EXPECT_NEAR(total.as<double>()[0], static_cast<double>(expected), bound) << name_of(dtype) << " of " << count;
    }
  }
}

TEST_F(NormTest, SumsManyTensors) {
  std::vector<Tensor> all{zeros(DType::f32, {0})};
  long double expected = 0;
  for (const std::int64_t count : {40000, 3, 32768, 1}) {
    for (const DType dtype : {DType::bf16, DType::f32}) {
      all.push_back(random(dtype, {count}));
      for (const double value : values_of(all.back()))
        expected += static_cast<long double>(value) * static_cast<long double>(value);
    }
  }
  const Tensor total = zeros(DType::f64, {1});
  sum_squares(*stream, scratch, {.x = {*device, all}, .total = total.as<double>()});
  EXPECT_NEAR(total.as<double>()[0], static_cast<double>(expected),
              gamma(150000, kUnitRoundoffF64) * static_cast<double>(expected));
  sum_squares(*stream, scratch, {.x = {*device, {}}, .total = total.as<double>()});
  EXPECT_NEAR(total.as<double>()[0], static_cast<double>(expected),
              gamma(150000, kUnitRoundoffF64) * static_cast<double>(expected));
}

TEST_F(NormTest, SquaresBeyondFp32AreFine) {
  const Tensor x = filled(DType::f32, {2, 2}, [](std::int64_t i) { return i == 0 ? 3e38 : 1e-38; });
  const Tensor total = zeros(DType::f64, {1});
  sum_squares(*stream, scratch, {.x = {*device, {x}}, .total = total.as<double>()});
  EXPECT_EQ(total.as<double>()[0], static_cast<double>(3e38f) * static_cast<double>(3e38f));
}

TEST_F(NormTest, NanAndInfinityShow) {
  for (const double bad : {std::nan(""), HUGE_VAL}) {
    const Tensor x = filled(DType::bf16, {5000}, [bad](std::int64_t i) { return i == 4999 ? bad : 0.0; });
    const Tensor total = zeros(DType::f64, {1});
    sum_squares(*stream, scratch, {.x = {*device, {x}}, .total = total.as<double>()});
    EXPECT_FALSE(std::isfinite(total.as<double>()[0]));
  }
}

TEST_F(NormTest, BitsDoNotDependOnThreads) {
  const Tensor x = random(DType::f32, {3, 70001});
  expect_same_for_any_threads([&] {
    const Tensor total = zeros(DType::f64, {1});
    sum_squares(*stream, scratch, {.x = {*device, {x}}, .total = total.as<double>()});
    return std::vector<Tensor>{total};
  });
}

TEST_F(NormTest, MetaAllocatesWhatCpuDoes) {
  const Tensor x = random(DType::f32, {40000}), total = zeros(DType::f64, {1});
  sum_squares(*stream, scratch, {.x = {*device, {x}}, .total = total.as<double>()});
  sum_squares(*meta_stream, meta_scratch, {.x = {*device, {x}}, .total = total.as<double>()});
  EXPECT_GT(meta_scratch.high_water(), 0u);
  EXPECT_EQ(meta_scratch.high_water(), scratch.high_water());
}

}  // namespace
}  // namespace octet::kernels
