#include "octet/kernels/gelu/gelu.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numbers>
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

struct GeluTest : testing::OpTest {};

// y = x p and dy/dx = p + x s, in long double. The fields are p, s and the argument of exp or erfc.
struct Point {
  long double share, slope, argument;  // the relative errors of p and s are multiples of it
};
Point point(Gelu kind, double value) {
  const long double x = value;
  if (kind == Gelu::exact) {
    const long double root = std::sqrt(2.0L * std::numbers::pi_v<long double>);
    return {std::erfc(-x / std::numbers::sqrt2_v<long double>) / 2, std::exp(-x * x / 2) / root, x * x};
  }
  const long double c = std::sqrt(2.0L / std::numbers::pi_v<long double>);
  const long double u = c * (x + 0.044715L * x * x * x);
  // Both branches compute (1 + tanh u) / 2 without its cancellation below 0.
  const long double p = u < 0 ? std::exp(2 * u) / (1 + std::exp(2 * u)) : 1 / (1 + std::exp(-2 * u));
  const long double q = u < 0 ? 1 / (1 + std::exp(2 * u)) : std::exp(-2 * u) / (1 + std::exp(-2 * u));
  return {p, p * q * 2 * c * (1 + 3 * 0.044715L * x * x), std::abs(2 * u)};
}

// If the argument of exp or erfc is off by a few roundoffs, the relative error of the result is that error times the argument.
// The products and the function itself add about a dozen roundings, and 1 - p is off by a roundoff of 1. Values below the normal
// numbers of FP32 may become 0.
TEST_F(GeluTest, ForwardAndBackwardAreTheFormula) {
  constexpr double kRoundings = 16;
  for (const Gelu kind : {Gelu::exact, Gelu::tanh}) {
    for (const DType dtype : testing::kFloatTypes) {
      for (const std::int64_t f : {1, 31, 352}) {
        const std::int64_t rows = 19;
        const Tensor x = random(dtype, {rows, f}, 3.0), gy = random(dtype, {rows, f});
        const Tensor y = zeros(dtype, {rows, f}), gx = zeros(dtype, {rows, f});
        gelu_forward(*stream, scratch, {.kind = kind, .x = x, .y = y});
        gelu_backward(*stream, scratch, {.kind = kind, .x = x, .gy = gy, .gx = gx});
        const auto z = values_of(x), g = values_of(gy);
        std::vector<double> expected, gradient, error, gradient_error;
        const double u = compute_roundoff(dtype);
        for (std::size_t i = 0; i < z.size(); ++i) {
          const Point p = point(kind, z[i]);
          const double share = static_cast<double>(p.share), slope = static_cast<double>(p.slope);
          const double relative = gamma(kRoundings + 4 * static_cast<double>(p.argument), u);
          expected.push_back(z[i] * share);
          gradient.push_back(g[i] * (share + z[i] * slope));
          const double lost = 0x1p-126 * (1 + std::abs(z[i])) * (1 + static_cast<double>(p.argument));
          error.push_back(relative * std::abs(expected[i]) + lost);
          const double tail = kind == Gelu::tanh ? 1 + static_cast<double>(p.argument) : 1.0;
          gradient_error.push_back(std::abs(g[i]) * (lost + relative * (share + std::abs(z[i]) * slope) +
                                                     gamma(kRoundings, u) * std::abs(z[i]) * share * tail));
        }
        const double storage = storage_roundoff(dtype);
        EXPECT_TRUE(near(
            values_of(y), expected, [&](std::size_t i) { return error[i] + storage * std::abs(expected[i]); }, f))
            << name_of(dtype) << " F " << f;
        EXPECT_TRUE(near(
            values_of(gx), gradient, [&](std::size_t i) { return gradient_error[i] + storage * std::abs(gradient[i]); }, f))
            << name_of(dtype) << " F " << f;
        const Tensor in_place = copy(x);
        gelu_backward(*stream, scratch, {.kind = kind, .x = in_place, .gy = gy, .gx = in_place});
        EXPECT_TRUE(testing::same_bytes(in_place, gx)) << "in place, " << name_of(dtype);
        gelu_forward(*stream, scratch, {.kind = kind, .x = x, .y = x});
        EXPECT_TRUE(testing::same_bytes(x, y)) << "in place, " << name_of(dtype);
      }
    }
  }
}

// The expected values come from torch.nn.functional.gelu in FP64 with approximate = "none" and "tanh".
TEST_F(GeluTest, AgreesWithTorch) {
  const std::vector<double> at = {-3.0, -0.75, 0.5, 2.0};
  const std::vector<double> exact = {-0x1.096697b244880p-8, -0x1.5c19804106bb9p-3, 0x1.62075e232ac77p-2, 0x1.f45a183e9b13dp+0},
                            approximate = {-0x1.dcc2a01161280p-9, -0x1.5c3da3f4bfcf2p-3, 0x1.6202da77df3f9p-2,
                                           0x1.f46083b4f1aa6p+0};
  const Tensor x = filled(DType::f64, {1, 4}, [&](std::int64_t i) { return at[static_cast<std::size_t>(i)]; });
  const Tensor y = zeros(DType::f64, {1, 4});
  gelu_forward(*stream, scratch, {.kind = Gelu::exact, .x = x, .y = y});
  // torch's 1 + erf cancels below 0, which leaves an absolute error of a roundoff of 1.
  EXPECT_TRUE(near(y, exact, {.absolute = 4 * kUnitRoundoffF64, .relative = gamma(32, kUnitRoundoffF64)}));
  gelu_forward(*stream, scratch, {.kind = Gelu::tanh, .x = x, .y = y});
  EXPECT_TRUE(near(y, approximate, {.absolute = 4 * kUnitRoundoffF64, .relative = gamma(64, kUnitRoundoffF64)}));
}

TEST_F(GeluTest, BackwardIsTheDerivative) {
  for (const Gelu kind : {Gelu::exact, Gelu::tanh}) {
    const std::int64_t rows = 3, f = 9;
    const Tensor x = random(DType::f64, {rows, f}, 2.0), gy = random(DType::f64, {rows, f});
    const Tensor y = zeros(DType::f64, {rows, f}), gx = zeros(DType::f64, {rows, f});
    gelu_backward(*stream, scratch, {.kind = kind, .x = x, .gy = gy, .gx = gx});
    const auto sum = [&] {
      gelu_forward(*stream, scratch, {.kind = kind, .x = x, .y = y});
      double total = 0;
      for (std::int64_t i = 0; i < y.elements(); ++i) total += y.as<double>()[i] * gy.as<double>()[i];
      return total;
    };
    EXPECT_TRUE(testing::gradient_agrees(
        {.name = "x", .x = x.as<double>(), .gradient = gx.as<double>(), .count = x.elements(), .f = sum}));
  }
}

TEST_F(GeluTest, ExtremeInputs) {
  const std::vector<float> inputs = {200.0f, -200.0f, 1e30f, -1e30f, 0.0f, std::numeric_limits<float>::quiet_NaN()};
  const auto f = static_cast<std::int64_t>(inputs.size());
  for (const Gelu kind : {Gelu::exact, Gelu::tanh}) {
    const Tensor x =
        filled(DType::f32, {1, f}, [&](std::int64_t i) { return static_cast<double>(inputs[static_cast<std::size_t>(i)]); });
    const Tensor gy = filled(DType::f32, {1, f}, [](std::int64_t) { return 1.0; });
    const Tensor y = zeros(DType::f32, {1, f}), g = zeros(DType::f32, {1, f});
    gelu_forward(*stream, scratch, {.kind = kind, .x = x, .y = y});
    gelu_backward(*stream, scratch, {.kind = kind, .x = x, .gy = gy, .gx = g});
    const std::vector<float> values = {200.0f, -0.0f, 1e30f, -0.0f, 0.0f}, slopes = {1.0f, 0.0f, 1.0f, 0.0f, 0.5f};
    for (std::size_t i = 0; i < values.size(); ++i) {
      EXPECT_EQ(y.as<float>()[i], values[i]) << inputs[i];
      EXPECT_EQ(g.as<float>()[i], slopes[i]) << inputs[i];
    }
    EXPECT_TRUE(std::isnan(y.as<float>()[5]));
    EXPECT_TRUE(std::isnan(g.as<float>()[5]));
  }
}

TEST_F(GeluTest, BitsDoNotDependOnThreads) {
  for (const DType dtype : testing::kFloatTypes) {
    for (const Gelu kind : {Gelu::exact, Gelu::tanh}) {
      const std::int64_t rows = 101, f = 300;
      const Tensor x = random(dtype, {rows, f}), gy = random(dtype, {rows, f});
      expect_same_for_any_threads([&] {
        const Tensor y = zeros(dtype, {rows, f}), g = zeros(dtype, {rows, f});
        gelu_forward(*stream, scratch, {.kind = kind, .x = x, .y = y});
        gelu_backward(*stream, scratch, {.kind = kind, .x = x, .gy = gy, .gx = g});
        return std::vector<Tensor>{y, g};
      });
    }
  }
}

TEST_F(GeluTest, RefusesWhatDoesNotFit) {
  const Tensor x = random(DType::f32, {4, 8});
  expect_refusal(
      [&] {
        gelu_forward(*stream, scratch, {.x = x, .y = zeros(DType::f32, {4, 9})});
      },
      "y must be [4, 8], got [4, 9]");
  expect_refusal(
      [&] {
        gelu_backward(*stream, scratch, {.x = x, .gy = zeros(DType::bf16, {4, 8}), .gx = x});
      },
      "x is F32, gy BF16");
}

}  // namespace
}  // namespace octet::kernels
