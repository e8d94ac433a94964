// Comparisons for EXPECT_TRUE(near(...)). A failure names the element and both values.
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

// Returns the elements of a tensor in host memory, row by row. FP8 codes are decoded; E8M0 bytes and integers are returned as numbers.
std::vector<double> values_of(const Tensor& tensor);

// Returns the name of element i: "[row, column]" in a matrix of `cols` columns, or "[i]" if cols is 0.
std::string element_name(std::size_t i, std::int64_t cols);

// Succeeds if |actual[i] - expected[i]| <= allowed(i) for every element. NaN agrees only with NaN, and an infinity only with itself. A
// failure names the element whose difference exceeds its limit by the largest factor.
::testing::AssertionResult near(const std::vector<double>& actual, const std::vector<double>& expected,
                                const std::function<double(std::size_t)>& allowed, std::int64_t cols = 0);

::testing::AssertionResult near(const std::vector<double>& actual, const std::vector<double>& expected,
                                Tolerance tolerance, std::int64_t cols = 0);

::testing::AssertionResult near(const Tensor& actual, const std::vector<double>& expected, Tolerance tolerance);

::testing::AssertionResult near(const Tensor& actual, const Tensor& expected, Tolerance tolerance);

// Returns the Frobenius norm of actual - expected divided by the norm of `expected`, or by 1 if that norm is 0.
double relative_frobenius(const std::vector<double>& actual, const std::vector<double>& expected);

::testing::AssertionResult near_norm(const std::vector<double>& actual, const std::vector<double>& expected,
                                     double limit);

// Succeeds if every element has the same bytes in both tensors. A failure names the first that differs.
::testing::AssertionResult same_bytes(const Tensor& actual, const Tensor& expected);

}  // namespace octet::testing
