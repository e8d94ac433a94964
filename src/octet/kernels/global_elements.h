// Maps the elements of an operand to their indices in the whole parameter. Random numbers are keyed by the global index, so they
// do not depend on how the parameter is sharded.
#pragma once

#include <cstdint>
#include <limits>

namespace octet::kernels {

// If `run` is 0, the elements are consecutive from `first` on. Otherwise they are some columns of a matrix: runs of `run`
// elements whose beginnings are `stride` apart. `skip` elements of the first run lie before element 0.
struct GlobalElements {
  std::int64_t first = 0;  // global index of element 0
  std::int64_t run = 0, stride = 0, skip = 0;

  constexpr bool consecutive() const { return run == 0; }
  // The global index of element i.
  constexpr std::int64_t at(std::int64_t i) const {
    return consecutive() ? first + i : first - skip + (skip + i) / run * stride + (skip + i) % run;
  }
  // The number of elements from i on whose global indices are consecutive.
  constexpr std::int64_t consecutive_from(std::int64_t i) const {
    return consecutive() ? std::numeric_limits<std::int64_t>::max() : run - (skip + i) % run;
  }
  constexpr bool valid() const { return first >= 0 && (consecutive() || (0 < run && run <= stride && 0 <= skip && skip < run)); }
  // Whether element 0 and the beginning and end of every run lie at multiples of `count` global elements.
  constexpr bool in_groups_of(std::int64_t count) const {
    return first % count == 0 && run % count == 0 && stride % count == 0 && skip % count == 0;
  }
};

}  // namespace octet::kernels
