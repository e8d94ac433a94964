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
::testing::AssertionResult gradient_agrees(const GradCheck& check);

}  // namespace octet::testing
