#include "octet/kernels/rmsnorm/rmsnorm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
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

struct RmsNormTest : testing::OpTest {
  struct Operands {
    Tensor x, weight, y, rstd, gy, gx, gweight;
  };
  Operands operands(DType dtype, std::int64_t rows, std::int64_t d, DType grad) {
    const DType real = dtype == DType::f64 ? DType::f64 : DType::f32;
    Operands o{.x = random(dtype, {rows, d}),
               .weight = random(dtype, {d}),
               .y = zeros(dtype, {rows, d}),
               .rstd = zeros(real, {rows}),
               .gy = random(dtype, {rows, d}),
               .gx = random(dtype, {rows, d}),
               .gweight = random(grad, {d})};
    rmsnorm_forward(*stream, scratch, {.x = o.x, .weight = o.weight, .y = o.y, .rstd = o.rstd});
    return o;
  }
  void backward(const Operands& o) {
    rmsnorm_backward(*stream, scratch,
                     {.gy = o.gy, .x = o.x, .weight = o.weight, .rstd = o.rstd, .gx = o.gx, .gweight = o.gweight});
  }
};

TEST_F(RmsNormTest, ForwardIsTheFormula) {
  for (const DType dtype : testing::kFloatTypes) {
    for (const std::int64_t d : {1, 24, 128, 1000}) {
      const std::int64_t rows = 37;
      const Operands o = operands(dtype, rows, d, DType::f32);
      const auto x = values_of(o.x), weight = values_of(o.weight);
      std::vector<double> rstd, y;
      for (std::int64_t t = 0; t < rows; ++t) {
        double squares = 0;
        for (std::int64_t i = 0; i < d; ++i)
          squares += x[static_cast<std::size_t>(t * d + i)] * x[static_cast<std::size_t>(t * d + i)];
        rstd.push_back(1 / std::sqrt(squares / static_cast<double>(d) + 1e-5));
        for (std::int64_t i = 0; i < d; ++i) {
          y.push_back(x[static_cast<std::size_t>(t * d + i)] * rstd.back() * weight[static_cast<std::size_t>(i)]);
        }
      }
      // The sum has d products and additions of one sign, and the root halves its relative error. The root, the quotient and two
      // products follow.
      const double relative = gamma(static_cast<double>(d) + 8, compute_roundoff(dtype));
      EXPECT_TRUE(near(o.rstd, rstd, {.relative = relative})) << name_of(dtype) << " D " << d;
      EXPECT_TRUE(near(o.y, y, {.relative = relative + storage_roundoff(dtype)})) << name_of(dtype) << " D " << d;
    }
  }
}

TEST_F(RmsNormTest, BackwardIsTheFormulaAndAdds) {
  for (const DType dtype : testing::kFloatTypes) {
    for (const DType grad : testing::kFloatTypes) {
      const std::int64_t rows = 50, d = 136;
      const Operands o = operands(dtype, rows, d, grad);
      const auto x = values_of(o.x), weight = values_of(o.weight), rstd = values_of(o.rstd), gy = values_of(o.gy);
      const auto gx_before = values_of(o.gx);
      std::vector<double> gx, gx_size, gweight = values_of(o.gweight), gweight_size(static_cast<std::size_t>(d));
      for (std::size_t i = 0; i < gweight.size(); ++i) gweight_size[i] = std::abs(gweight[i]);
      for (std::size_t t = 0; t < rows; ++t) {
        double mean = 0, mean_size = 0;
        for (std::size_t i = 0; i < d; ++i) {
          const double term = gy[t * d + i] * weight[i] * x[t * d + i] * rstd[t] / d;
          mean += term;
          mean_size += std::abs(term);
        }
        for (std::size_t i = 0; i < d; ++i) {
          const double n = x[t * d + i] * rstd[t], g = gy[t * d + i];
          gx.push_back(gx_before[t * d + i] + rstd[t] * (g * weight[i] - n * mean));
          gx_size.push_back(std::abs(gx_before[t * d + i]) + rstd[t] * (std::abs(g * weight[i]) + std::abs(n) * mean_size));
          gweight[i] += g * n;
          gweight_size[i] += std::abs(g * n);
        }
      }
      backward(o);
      const double roundoff = compute_roundoff(dtype);
      EXPECT_TRUE(near(
          values_of(o.gx), gx,
          [&](std::size_t i) { return gamma(d + 8, roundoff) * gx_size[i] + storage_roundoff(dtype) * std::abs(gx[i]); }, d))
          << name_of(dtype);
      EXPECT_TRUE(near(values_of(o.gweight), gweight,
                       [&](std::size_t i) {
                         return gamma(rows + 4, roundoff) * gweight_size[i] +
                                storage_roundoff(grad) * (1 + roundoff) * std::abs(gweight[i]);
                       }))
          << name_of(dtype) << " gradient " << name_of(grad);
    }
  }
}

TEST_F(RmsNormTest, BackwardOfAFrozenWeightGivesTheSameGx) {
  const Operands o = operands(DType::bf16, 50, 136, DType::f32);
  Operands frozen = o;
  frozen.gx = copy(o.gx);
  frozen.gweight = {};
  backward(o);
  backward(frozen);
  EXPECT_EQ(values_of(frozen.gx), values_of(o.gx));
}

TEST_F(RmsNormTest, BackwardIsTheDerivative) {
  const std::int64_t rows = 5, d = 12;
  Operands o = operands(DType::f64, rows, d, DType::f64);
  stream->zero(o.gx.data, o.gx.bytes());
  stream->zero(o.gweight.data, o.gweight.bytes());
  backward(o);
  const Tensor rstd = zeros(DType::f64, {rows});
  const auto f = [&] {
    rmsnorm_forward(*stream, scratch, {.x = o.x, .weight = o.weight, .y = o.y, .rstd = rstd});
    double sum = 0;
    for (std::int64_t i = 0; i < rows * d; ++i) sum += o.y.as<double>()[i] * o.gy.as<double>()[i];
    return sum;
  };
  EXPECT_TRUE(
      testing::gradient_agrees({.name = "x", .x = o.x.as<double>(), .gradient = o.gx.as<double>(), .count = rows * d, .f = f}));
  EXPECT_TRUE(testing::gradient_agrees(
      {.name = "weight", .x = o.weight.as<double>(), .gradient = o.gweight.as<double>(), .count = d, .f = f}));
}

TEST_F(RmsNormTest, BitsDoNotDependOnThreads) {
  for (const DType dtype : testing::kFloatTypes) {
    const std::int64_t rows = 1500, d = 600;  // more than one task in each direction
    const Operands o = operands(dtype, rows, d, DType::f32);
    expect_same_for_any_threads([&] {
      Operands fresh = o;
      fresh.y = zeros(dtype, {rows, d});
      fresh.rstd = zeros(o.rstd.dtype, {rows});
      fresh.gx = copy(o.gx);
      fresh.gweight = copy(o.gweight);
      rmsnorm_forward(*stream, scratch, {.x = o.x, .weight = o.weight, .y = fresh.y, .rstd = fresh.rstd});
      backward(fresh);
      return std::vector<Tensor>{fresh.y, fresh.rstd, fresh.gx, fresh.gweight};
    });
  }
}

TEST_F(RmsNormTest, HostileRows) {
  const std::int64_t d = 40;
  const Tensor x = filled(DType::f32, {4, d}, [](std::int64_t i) {
    if (i / d == 1) return 1e-30;  // the squares underflow
    if (i == 2 * d + 5) return std::numeric_limits<double>::quiet_NaN();
    return i / d == 3 ? 1e18 : 0.0;  // the squares are near the top of the range
  });
  const Tensor weight = filled(DType::f32, {d}, [](std::int64_t) { return 1.0; });
  const Tensor y = zeros(DType::f32, {4, d}), rstd = zeros(DType::f32, {4});
  rmsnorm_forward(*stream, scratch, {.x = x, .weight = weight, .epsilon = 1e-6, .y = y, .rstd = rstd});
  for (std::int64_t i = 0; i < d; ++i) {
    EXPECT_EQ(y.as<float>()[i], 0.0f);
    EXPECT_NEAR(y.as<float>()[d + i], 1e-27f, 1e-27 * gamma(static_cast<double>(d) + 8, kUnitRoundoffF32));
    EXPECT_TRUE(std::isnan(y.as<float>()[2 * d + i]));
    EXPECT_NEAR(y.as<float>()[3 * d + i], 1.0f, gamma(static_cast<double>(d) + 8, kUnitRoundoffF32));
  }
}

TEST_F(RmsNormTest, MetaAllocatesWhatCpuDoes) {
  const Operands o = operands(DType::bf16, 300, 64, DType::f32);
  const std::size_t before = scratch.high_water();
  backward(o);
  rmsnorm_backward(*meta_stream, meta_scratch,
                   {.gy = o.gy, .x = o.x, .weight = o.weight, .rstd = o.rstd, .gx = o.gx, .gweight = o.gweight});
  EXPECT_EQ(before, 0u);
  EXPECT_GT(meta_scratch.high_water(), 0u);
  EXPECT_EQ(meta_scratch.high_water(), scratch.high_water());
  EXPECT_EQ(scratch.used(), 0u);
  EXPECT_GE(meta_stream->work().bytes, 4.0 * 300 * 64 * 2);
}

TEST_F(RmsNormTest, RefusesWhatDoesNotFit) {
  Operands o = operands(DType::f32, 4, 8, DType::f32);
  expect_refusal(
      [&] { rmsnorm_forward(*stream, scratch, {.x = o.x, .weight = zeros(DType::f32, {9}), .y = o.y, .rstd = o.rstd}); },
      "weight must be [8], got [9]");
  expect_refusal(
      [&] {
        rmsnorm_forward(*stream, scratch, {.x = o.x, .weight = o.weight, .y = zeros(DType::bf16, {4, 8}), .rstd = o.rstd});
      },
      "x is F32, y BF16");
}

}  // namespace
}  // namespace octet::kernels
