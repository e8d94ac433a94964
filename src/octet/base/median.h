// Medians of times, rates, losses and samples. All medians of the program are computed here.
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <vector>

namespace octet {

// Returns the middle value, or the mean of the middle two if the number of values is even. NaN without values.
inline double median(std::vector<double> values) {
  if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  return (values[(n - 1) / 2] + values[n / 2]) / 2;
}

// Returns the middle value, or the lower one of the middle two, so that the result is always one of the values. NaN without
// values.
inline double lower_median(std::vector<double> values) {
  if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace octet
