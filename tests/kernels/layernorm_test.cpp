#include "octet/kernels/layernorm/layernorm.h"

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

struct LayerNormTest : testing::OpTest {
  struct Operands {
    Tensor x, weight, bias, y, mean, rstd, gy, gx, gweight, gbias;
  };
  Operands operands(DType dtype, std::int64_t rows, std::int64_t d, DType grad) {
    const DType real = dtype == DType::f64 ? DType::f64 : DType::f32;
    Operands o{.x = random(dtype, {rows, d}),
               .weight = random(dtype, {d}),
               .bias = random(dtype, {d}),
               .y = zeros(dtype, {rows, d}),
               .mean = zeros(real, {rows}),
               .rstd = zeros(real, {rows}),
               .gy = random(dtype, {rows, d}),
               .gx = random(dtype, {rows, d}),
               .gweight = random(grad, {d}),
               .gbias = random(grad, {d})};
    forward(o);
    return o;
  }
  void forward(const Operands& o, double epsilon = 1e-5) {
    layernorm_forward(
        *stream, scratch,
        {.x = o.x, .weight = o.weight, .bias = o.bias, .epsilon = epsilon, .y = o.y, .mean = o.mean, .rstd = o.rstd});
  }
  static LayerNormBackward backward_of(const Operands& o) {
    return {.gy = o.gy,
            .x = o.x,
            .weight = o.weight,
            .mean = o.mean,
            .rstd = o.rstd,
            .gx = o.gx,
            .gweight = o.gweight,
            .gbias = o.gbias};
  }
  void backward(const Operands& o) { layernorm_backward(*stream, scratch, backward_of(o)); }
};

// The mean of D numbers errs by gamma(D) times the mean of their magnitudes, and x - mean by as much. The variance errs by twice
// that relative to its root, and by the rounding of its own sum.
TEST_F(LayerNormTest, ForwardIsTheFormula) {
  for (const DType dtype : testing::kFloatTypes) {
    for (const std::int64_t d : {1, 24, 128, 1000}) {
      const std::int64_t rows = 37;
      const Operands o = operands(dtype, rows, d, DType::f32);
      const auto x = values_of(o.x), weight = values_of(o.weight), bias = values_of(o.bias);
      const auto width = static_cast<std::size_t>(d);
      const double sums = gamma(static_cast<double>(d) + 8, compute_roundoff(dtype));
      std::vector<double> means, rstds, y, mean_error, rstd_error, y_error;
      for (std::size_t t = 0; t < static_cast<std::size_t>(rows); ++t) {
        double sum = 0, sizes = 0, squares = 0;
        for (std::size_t i = 0; i < width; ++i) {
          sum += x[t * width + i];
          sizes += std::abs(x[t * width + i]);
        }
        means.push_back(sum / static_cast<double>(d));
        mean_error.push_back(sums * sizes / static_cast<double>(d));
        for (std::size_t i = 0; i < width; ++i) squares += std::pow(x[t * width + i] - means[t], 2);
        const double variance = squares / static_cast<double>(d) + 1e-5;
        rstds.push_back(1 / std::sqrt(variance));
        rstd_error.push_back(rstds[t] * (sums + mean_error[t] * rstds[t]));
        for (std::size_t i = 0; i < width; ++i) {
          const double n = (x[t * width + i] - means[t]) * rstds[t];
          y.push_back(n * weight[i] + bias[i]);
          y_error.push_back(std::abs(weight[i]) * (mean_error[t] * rstds[t] + std::abs(n) * (sums + rstd_error[t] / rstds[t])) +
                            sums * (std::abs(n * weight[i]) + std::abs(bias[i])) + storage_roundoff(dtype) * std::abs(y.back()));
        }
      }
      EXPECT_TRUE(near(values_of(o.mean), means, [&](std::size_t i) { return mean_error[i]; })) << name_of(dtype) << " D " << d;
      EXPECT_TRUE(near(values_of(o.rstd), rstds, [&](std::size_t i) { return rstd_error[i]; })) << name_of(dtype) << " D " << d;
      EXPECT_TRUE(near(
          values_of(o.y), y, [&](std::size_t i) { return y_error[i]; }, d))
          << name_of(dtype) << " D " << d;
    }
  }
}

TEST_F(LayerNormTest, BackwardIsTheFormulaAndAdds) {
  for (const DType dtype : testing::kFloatTypes) {
    for (const DType grad : testing::kFloatTypes) {
      const std::int64_t rows = 50;
      constexpr std::size_t d = 136;
      const Operands o = operands(dtype, rows, d, grad);
      const auto x = values_of(o.x), weight = values_of(o.weight), mean = values_of(o.mean), rstd = values_of(o.rstd),
                 gy = values_of(o.gy), gx_before = values_of(o.gx);
      std::vector<double> gx, gx_size, gweight = values_of(o.gweight), gbias = values_of(o.gbias), gweight_size, gbias_size;
      for (const double v : gweight) gweight_size.push_back(std::abs(v));
      for (const double v : gbias) gbias_size.push_back(std::abs(v));
      for (std::size_t t = 0; t < static_cast<std::size_t>(rows); ++t) {
        double sum = 0, dot = 0, sum_size = 0, dot_size = 0;
        for (std::size_t i = 0; i < d; ++i) {
          const double n = (x[t * d + i] - mean[t]) * rstd[t], g = gy[t * d + i] * weight[i] / d;
          sum += g;
          dot += g * n;
          sum_size += std::abs(g);
          dot_size += std::abs(g) * rstd[t] * (std::abs(x[t * d + i]) + std::abs(mean[t]));
        }
        for (std::size_t i = 0; i < d; ++i) {
          const double n = (x[t * d + i] - mean[t]) * rstd[t], g = gy[t * d + i];
          const double n_size = rstd[t] * (std::abs(x[t * d + i]) + std::abs(mean[t]));
          gx.push_back(gx_before[t * d + i] + rstd[t] * (g * weight[i] - sum - n * dot));
          gx_size.push_back(std::abs(gx_before[t * d + i]) + rstd[t] * (std::abs(g * weight[i]) + sum_size + n_size * dot_size));
          gweight[i] += g * n;
          gweight_size[i] += std::abs(g) * n_size;
          gbias[i] += g;
          gbias_size[i] += std::abs(g);
        }
      }
      backward(o);
      const double roundoff = compute_roundoff(dtype);
      EXPECT_TRUE(near(
          values_of(o.gx), gx,
          [&](std::size_t i) { return gamma(d + 10, roundoff) * gx_size[i] + storage_roundoff(dtype) * std::abs(gx[i]); }, d))
          << name_of(dtype);
      const auto expect_sums = [&](const Tensor& actual, const std::vector<double>& expected, const std::vector<double>& size) {
        EXPECT_TRUE(near(values_of(actual), expected,
                         [&](std::size_t i) {
                           return gamma(static_cast<double>(rows) + 6, roundoff) * size[i] +
                                  storage_roundoff(grad) * (1 + roundoff) * std::abs(expected[i]);
                         }))
            << name_of(dtype) << " gradient " << name_of(grad);
      };
      expect_sums(o.gweight, gweight, gweight_size);
      expect_sums(o.gbias, gbias, gbias_size);
    }
  }
}

TEST_F(LayerNormTest, BackwardOfAFrozenWeightGivesTheSameGx) {
  const Operands o = operands(DType::bf16, 50, 136, DType::f32);
  Operands frozen = o;
  frozen.gx = copy(o.gx);
  frozen.gweight = frozen.gbias = {};
  backward(o);
  backward(frozen);
  EXPECT_EQ(values_of(frozen.gx), values_of(o.gx));
}

TEST_F(LayerNormTest, BackwardIsTheDerivative) {
  const std::int64_t rows = 5, d = 12;
  const Operands o = operands(DType::f64, rows, d, DType::f64);
  for (const Tensor& gradient : {o.gx, o.gweight, o.gbias}) stream->zero(gradient.data, gradient.bytes());
  backward(o);
  const auto f = [&] {
    forward(o);
    double sum = 0;
    for (std::int64_t i = 0; i < rows * d; ++i) sum += o.y.as<double>()[i] * o.gy.as<double>()[i];
    return sum;
  };
  const auto expect_gradient = [&](const char* name, const Tensor& x, const Tensor& gradient) {
    EXPECT_TRUE(testing::gradient_agrees(
        {.name = name, .x = x.as<double>(), .gradient = gradient.as<double>(), .count = x.elements(), .f = f}));
  };
  expect_gradient("x", o.x, o.gx);
  expect_gradient("weight", o.weight, o.gweight);
  expect_gradient("bias", o.bias, o.gbias);
}

TEST_F(LayerNormTest, BitsDoNotDependOnThreads) {
  for (const DType dtype : testing::kFloatTypes) {
    const std::int64_t rows = 1500, d = 600;  // more than one task in each direction
    const Operands o = operands(dtype, rows, d, DType::f32);
    expect_same_for_any_threads([&] {
      Operands fresh = o;
      fresh.y = zeros(dtype, {rows, d});
      fresh.mean = zeros(o.mean.dtype, {rows});
      fresh.rstd = zeros(o.rstd.dtype, {rows});
      fresh.gx = copy(o.gx);
      fresh.gweight = copy(o.gweight);
      fresh.gbias = copy(o.gbias);
      forward(fresh);
      backward(fresh);
      return std::vector<Tensor>{fresh.y, fresh.mean, fresh.rstd, fresh.gx, fresh.gweight, fresh.gbias};
    });
  }
}

TEST_F(LayerNormTest, HostileRows) {
  const std::int64_t d = 40;
  Operands o = operands(DType::f32, 4, d, DType::f32);
  o.x = filled(DType::f32, {4, d}, [](std::int64_t i) {
    if (i / d == 1) return 1e6 + static_cast<double>(i % 2);  // the mean is a million times the deviation
    if (i == 2 * d + 5) return std::numeric_limits<double>::quiet_NaN();
    return i / d == 3 ? (i % 2 == 0 ? 1e18 : -1e18) : 3.0;  // row 3: squares near the top of the range; rows 0 and 2: no variance
  });
  o.weight = filled(DType::f32, {d}, [](std::int64_t) { return 1.0; });
  o.bias = filled(DType::f32, {d}, [](std::int64_t) { return 0.5; });
  forward(o, 1e-6);
  const float* y = o.y.as<float>();
  for (std::int64_t i = 0; i < d; ++i) {
    EXPECT_EQ(y[i], 0.5f);
    EXPECT_NEAR(y[d + i], i % 2 == 0 ? -0.5f : 1.5f, 0x1p-3) << "centred before it is squared";
    EXPECT_TRUE(std::isnan(y[2 * d + i]));
    EXPECT_NEAR(y[3 * d + i], i % 2 == 0 ? 1.5f : -0.5f, 2 * gamma(static_cast<double>(d) + 8, kUnitRoundoffF32));
  }
}

TEST_F(LayerNormTest, MetaAllocatesWhatCpuDoes) {
  const Operands o = operands(DType::bf16, 300, 64, DType::f32);
  EXPECT_EQ(scratch.high_water(), 0u);
  backward(o);
  layernorm_backward(*meta_stream, meta_scratch, backward_of(o));
  EXPECT_GT(meta_scratch.high_water(), 0u);
  EXPECT_EQ(meta_scratch.high_water(), scratch.high_water());
  EXPECT_EQ(scratch.used(), 0u);
}

TEST_F(LayerNormTest, RefusesWhatDoesNotFit) {
  Operands o = operands(DType::f32, 4, 8, DType::f32);
  const auto with = [&](auto&& change) {
    return [&, change] {
      Operands other = o;
      change(other);
      forward(other);
    };
  };
  expect_refusal(with([&](Operands& other) { other.weight = zeros(DType::f32, {9}); }), "weight must be [8], got [9]");
  expect_refusal(with([&](Operands& other) { other.bias = zeros(DType::bf16, {8}); }), "bias must be F32, got BF16");
  expect_refusal(with([&](Operands& other) { other.y = zeros(DType::f32, {4, 9}); }), "y must be [4, 8], got [4, 9]");
  o.gbias = zeros(DType::bf16, {8});
  expect_refusal([&] { backward(o); }, "gbias must be F32, got BF16");
}

}  // namespace
}  // namespace octet::kernels
