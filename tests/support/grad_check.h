// Compares an analytic gradient with central finite differences, for functions of double arrays.
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
  std::string name;                  // name of x, for messages
  double* x = nullptr;               // [count]; changed one element at a time and restored
  const double* gradient = nullptr;  // [count]; df/dx at x; f must not write this memory
  std::int64_t count = 0;
  std::function<double()> f;  // reads x
  std::int64_t samples = 0;   // number of elements to check, drawn with `seed`; 0: all elements
  std::uint64_t seed = 1;
  double noise = 64 * std::numeric_limits<double>::epsilon();  // rounding error of f, relative to the largest |f| seen
  double magnitude = 0;                                        // the noise is relative to this if the terms of f cancel
};

// For each element, computes d(h) = (f(x + h) - f(x - h)) / 2h at h and 2h and extrapolates (Richardson): (4 d(h) - d(2h)) / 3. The error
// is of order h^4 f5 + noise |f| / h, where f5 is the fifth derivative; h = eps^(1/5) max(1, |x|) balances both terms. The tolerance is
// |d(h) - d(2h)| / 100 plus twice the noise term. |d(h) - d(2h)| is of order h^2 f3, which is far above h^4 f5 unless x is close to a
// singularity. Also fails if the gradient is so small, or f so rough, that a wrong gradient could not be detected.
::testing::AssertionResult gradient_agrees(const GradCheck& check);

}  // namespace octet::testing
