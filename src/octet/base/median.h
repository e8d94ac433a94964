// The one place of medians: of times, rates, losses and samples.
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <vector>

namespace octet {

// The middle value; of an even number of values the mean of the middle two. NaN without values.
inline double median(std::vector<double> values) {
  if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  return (values[(n - 1) / 2] + values[n / 2]) / 2;
}

// The middle value, or the lower one of the middle two: always one of the values. NaN without values.
inline double lower_median(std::vector<double> values) {
  if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace octet
