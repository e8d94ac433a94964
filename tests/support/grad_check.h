// Central finite differences against an analytic gradient, for functions of double arrays.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>

#include "octet/base/rng.h"

namespace octet::testing {

struct GradCheck {
  std::string name;                  // of x, for the message
  double* x = nullptr;               // [count]; changed one element at a time and put back
  const double* gradient = nullptr;  // [count]; df/dx at x; must not be memory that f writes
  std::int64_t count = 0;
  std::function<double()> f;  // reads x
  std::int64_t samples = 0;   // so many elements, drawn with `seed`; 0: all of them
  std::uint64_t seed = 1;
  double noise = 64 * std::numeric_limits<double>::epsilon();  // rounding error of f, relative to the largest |f| seen (or to
  double magnitude = 0;                                        // this, where the terms of f cancel)
};

// For each element: d(h) = (f(x + h) - f(x - h)) / 2h at h and 2h, extrapolated (Richardson), (4 d(h) - d(2h)) / 3, whose
// error is of order h^4 f5 + noise |f| / h; both are balanced by h = eps^(1/5) max(1, |x|). Allowed are a hundredth of
// |d(h) - d(2h)|, which is of order h^2 f3 and so far above h^4 f5 unless x is close to a singularity, and twice the noise.
// Fails also where the gradient is so small, or f so rough, that a wrong gradient could not be told from a right one.
inline ::testing::AssertionResult gradient_agrees(const GradCheck& check) {
  const double base_step = std::pow(std::numeric_limits<double>::epsilon(), 0.2);
  double largest = 0;
  for (std::int64_t i = 0; i < check.count; ++i) largest = std::max(largest, std::abs(check.gradient[i]));
  const bool all = check.samples <= 0 || check.samples >= check.count;
  const Rng rng(check.seed, RngStream::test, name_id(check.name));
  for (std::int64_t sample = 0; sample < (all ? check.count : check.samples); ++sample) {
    const std::int64_t i =
        all ? sample
            : static_cast<std::int64_t>(rng.word64(static_cast<std::uint64_t>(sample)) % static_cast<std::uint64_t>(check.count));
    const double x = check.x[i];
    const double step = base_step * std::max(1.0, std::abs(x));
    double magnitude = check.magnitude;
    const auto difference = [&](double h) {
      const volatile double above = x + h, below = x - h;  // as they are stored, so that the divisor is exact
      check.x[i] = above;
      const double f_above = check.f();
      check.x[i] = below;
      const double f_below = check.f();
      check.x[i] = x;
      if (check.magnitude <= 0) magnitude = std::max({magnitude, std::abs(f_above), std::abs(f_below)});
      return (f_above - f_below) / (above - below);
    };
    const double d1 = difference(step), d2 = difference(2 * step);
    const double numeric = (4 * d1 - d2) / 3;
    const double allowed = 0.01 * std::abs(d1 - d2) + 2 * check.noise * magnitude / step;
    const double analytic = check.gradient[i];
    if (!(std::abs(numeric - analytic) <= allowed)) {
      return ::testing::AssertionFailure() << check.name << "[" << i << "] = " << x << ": gradient " << analytic
                                           << ", finite difference " << numeric << ", allowed " << allowed;
    }
    if (!(allowed <= 1e-3 * largest)) {
      return ::testing::AssertionFailure() << check.name << "[" << i << "] = " << x << ": the tolerance " << allowed
                                           << " says nothing about gradients of at most " << largest;
    }
  }
  return ::testing::AssertionSuccess();
}

}  // namespace octet::testing
