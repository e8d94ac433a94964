// Comparisons that name the element and both values when they fail. For EXPECT_TRUE(near(...)).
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "octet/base/require.h"
#include "octet/tensor/tensor.h"

namespace octet::testing {

// Element i may differ by absolute + relative * |expected[i]|.
struct Tolerance {
  double absolute = 0;
  double relative = 0;
};

// The elements of any tensor in host memory, row by row. FP8 codes are decoded, E8M0 and integers are taken as numbers.
std::vector<double> values_of(const Tensor& tensor);

// "[2, 5]" for element i of a matrix of `cols` columns, "[i]" when cols is 0.
std::string element_name(std::size_t i, std::int64_t cols);

// |actual[i] - expected[i]| <= allowed(i) for every element; NaN agrees with NaN and an infinity with itself only. Names the
// element that exceeds what is allowed to it by the largest factor.
::testing::AssertionResult near(const std::vector<double>& actual, const std::vector<double>& expected,
                                const std::function<double(std::size_t)>& allowed, std::int64_t cols = 0);

::testing::AssertionResult near(const std::vector<double>& actual, const std::vector<double>& expected,
                                Tolerance tolerance, std::int64_t cols = 0);

::testing::AssertionResult near(const Tensor& actual, const std::vector<double>& expected, Tolerance tolerance);

::testing::AssertionResult near(const Tensor& actual, const Tensor& expected, Tolerance tolerance);

// Frobenius norm of the difference over that of `expected` (over 1 where that is 0).
double relative_frobenius(const std::vector<double>& actual, const std::vector<double>& expected);

::testing::AssertionResult near_norm(const std::vector<double>& actual, const std::vector<double>& expected,
                                     double limit);

// The same bytes in every element; names the first that differs.
::testing::AssertionResult same_bytes(const Tensor& actual, const Tensor& expected);

}  // namespace octet::testing
