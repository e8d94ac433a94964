// Which elements of a whole parameter the elements of an operand are: what keys their random numbers, so that they are the same
// however the parameter is cut.
#pragma once

#include <cstdint>
#include <limits>

namespace octet::kernels {

// Consecutive ones from `first` on or, with a `run`, some of the columns of a matrix: runs of `run` elements whose beginnings are
// `stride` apart, of the first of which `skip` elements lie before element 0.
struct GlobalElements {
  std::int64_t first = 0;  // global index of element 0
  std::int64_t run = 0, stride = 0, skip = 0;

  constexpr bool consecutive() const { return run == 0; }
  // Global index of element i.
  constexpr std::int64_t at(std::int64_t i) const {
    return consecutive() ? first + i : first - skip + (skip + i) / run * stride + (skip + i) % run;
  }
  // How many elements from i on are consecutive.
  constexpr std::int64_t consecutive_from(std::int64_t i) const {
    return consecutive() ? std::numeric_limits<std::int64_t>::max() : run - (skip + i) % run;
  }
  constexpr bool valid() const { return first >= 0 && (consecutive() || (0 < run && run <= stride && 0 <= skip && skip < run)); }
  // Whether every run begins and ends between groups of `count` global elements, and element 0 is a group's first.
  constexpr bool in_groups_of(std::int64_t count) const {
    return first % count == 0 && run % count == 0 && stride % count == 0 && skip % count == 0;
  }
};

}  // namespace octet::kernels
