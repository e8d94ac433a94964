#include "octet/kernels/swiglu/swiglu.h"

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

// exp within 2 ulp (4 u), then a sum, a quotient and products.
constexpr double kRoundings = 12;

struct SwigluTest : testing::OpTest {};

TEST_F(SwigluTest, ForwardAndBackwardAreTheFormula) {
  for (const DType dtype : testing::kFloatTypes) {
    for (const std::int64_t f : {1, 31, 352}) {
      const std::int64_t rows = 19;
      const Tensor gate_up = random(dtype, {rows, 2 * f}, 4.0), gy = random(dtype, {rows, f});
      const Tensor y = zeros(dtype, {rows, f}), ggate_up = zeros(dtype, {rows, 2 * f});
      swiglu_forward(*stream, scratch, {.gate_up = gate_up, .y = y});
      swiglu_backward(*stream, scratch, {.gate_up = gate_up, .gy = gy, .ggate_up = ggate_up});
      const auto z = values_of(gate_up), g = values_of(gy);
      const auto width = static_cast<std::size_t>(f);
      std::vector<double> expected, gradient(2 * width * rows), size(2 * width * rows);
      for (std::size_t t = 0; t < rows; ++t) {
        for (std::size_t i = 0; i < width; ++i) {
          const std::size_t a = t * 2 * width + i, b = a + width;
          const double s = 1 / (1 + std::exp(-z[a]));
          expected.push_back(z[a] * s * z[b]);
          gradient[a] = g[t * width + i] * z[b] * s * (1 + z[a] * (1 - s));
          gradient[b] = g[t * width + i] * z[a] * s;
          size[a] = std::abs(g[t * width + i] * z[b] * s) * (1 + std::abs(z[a]));  // 1 - s errs by u s, not by u (1 - s)
          size[b] = std::abs(gradient[b]);
        }
      }
      const double roundoff = gamma(kRoundings, compute_roundoff(dtype));
      EXPECT_TRUE(near(y, expected, {.relative = roundoff + storage_roundoff(dtype)})) << name_of(dtype) << " F " << f;
      EXPECT_TRUE(near(
          values_of(ggate_up), gradient,
          [&](std::size_t i) { return roundoff * size[i] + storage_roundoff(dtype) * std::abs(gradient[i]); }, 2 * f))
          << name_of(dtype) << " F " << f;
      swiglu_backward(*stream, scratch, {.gate_up = gate_up, .gy = gy, .ggate_up = gate_up});
      EXPECT_TRUE(testing::same_bytes(gate_up, ggate_up)) << "in place, " << name_of(dtype);
    }
  }
}

TEST_F(SwigluTest, BackwardIsTheDerivative) {
  const std::int64_t rows = 3, f = 9;
  const Tensor gate_up = random(DType::f64, {rows, 2 * f}, 2.0), gy = random(DType::f64, {rows, f});
  const Tensor y = zeros(DType::f64, {rows, f}), ggate_up = zeros(DType::f64, {rows, 2 * f});
  swiglu_backward(*stream, scratch, {.gate_up = gate_up, .gy = gy, .ggate_up = ggate_up});
  const auto sum = [&] {
    swiglu_forward(*stream, scratch, {.gate_up = gate_up, .y = y});
    double total = 0;
    for (std::int64_t i = 0; i < y.elements(); ++i) total += y.as<double>()[i] * gy.as<double>()[i];
    return total;
  };
  EXPECT_TRUE(testing::gradient_agrees(
      {.name = "gate_up", .x = gate_up.as<double>(), .gradient = ggate_up.as<double>(), .count = gate_up.elements(), .f = sum}));
}

TEST_F(SwigluTest, ExtremeGates) {
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> gates = {200.0f, -200.0f, 1e30f, -1e30f, 0.0f, std::numeric_limits<float>::quiet_NaN()};
  const auto f = static_cast<std::int64_t>(gates.size());
  const Tensor gate_up = filled(DType::f32, {1, 2 * f}, [&](std::int64_t i) {
    return i < f ? static_cast<double>(gates[static_cast<std::size_t>(i)]) : 3.0;
  });
  const Tensor gy = filled(DType::f32, {1, f}, [](std::int64_t) { return 1.0; });
  const Tensor y = zeros(DType::f32, {1, f}), g = zeros(DType::f32, {1, 2 * f});
  swiglu_forward(*stream, scratch, {.gate_up = gate_up, .y = y});
  swiglu_backward(*stream, scratch, {.gate_up = gate_up, .gy = gy, .ggate_up = g});
  EXPECT_EQ(y.as<float>()[0], 600.0f);
  EXPECT_EQ(y.as<float>()[1], -0.0f);
  EXPECT_EQ(y.as<float>()[2], 1e30f * 3.0f);
  EXPECT_EQ(y.as<float>()[3], -0.0f);
  EXPECT_EQ(y.as<float>()[4], 0.0f);
  EXPECT_TRUE(std::isnan(y.as<float>()[5]));
  EXPECT_EQ(g.as<float>()[0], 3.0f);
  EXPECT_EQ(g.as<float>()[1], -0.0f);
  EXPECT_EQ(g.as<float>()[2], 3.0f);
  EXPECT_EQ(g.as<float>()[4], 1.5f);
  for (std::int64_t i = 0; i < 5; ++i) EXPECT_LT(std::abs(g.as<float>()[i]), inf) << i;
  EXPECT_TRUE(std::isnan(g.as<float>()[5]));
}

TEST_F(SwigluTest, BitsDoNotDependOnThreads) {
  for (const DType dtype : testing::kFloatTypes) {
    const std::int64_t rows = 101, f = 300;
    const Tensor gate_up = random(dtype, {rows, 2 * f}), gy = random(dtype, {rows, f});
    expect_same_for_any_threads([&] {
      const Tensor y = zeros(dtype, {rows, f}), g = zeros(dtype, {rows, 2 * f});
      swiglu_forward(*stream, scratch, {.gate_up = gate_up, .y = y});
      swiglu_backward(*stream, scratch, {.gate_up = gate_up, .gy = gy, .ggate_up = g});
      return std::vector<Tensor>{y, g};
    });
  }
}

TEST_F(SwigluTest, RefusesWhatDoesNotFit) {
  const Tensor gate_up = random(DType::f32, {4, 16});
  expect_refusal(
      [&] {
        swiglu_forward(*stream, scratch, {.gate_up = gate_up, .y = zeros(DType::f32, {4, 9})});
      },
      "y must be [4, 8], got [4, 9]");
  expect_refusal(
      [&] {
        swiglu_forward(*stream, scratch, {.gate_up = gate_up, .y = zeros(DType::bf16, {4, 8})});
      },
      "gate_up is F32, y BF16");
}

}  // namespace
}  // namespace octet::kernels
