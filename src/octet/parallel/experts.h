// Expert parallelism: which ranks hold which experts of a mixture-of-experts layer. Each of e ranks holds E / e consecutive ones
// of the E experts, and tokens travel to the ranks that hold theirs.
#pragma once

#include <cstdint>

namespace octet::parallel {

// The expert to which a parameter belongs: number `index` of the `count` experts of its layer. The default is no expert: every
// rank holds the parameter.
struct Expert {
  std::int64_t index = 0, count = 0;
  explicit operator bool() const { return count > 0; }
};

// A rank's coordinate among the ranks that exchange tokens; `size` divides the number of experts.
struct ExpertPlace {
  int rank = 0, size = 1;

  // Return the experts [begin, end) of `count` that this rank holds.
  std::int64_t begin(std::int64_t count) const { return rank * (count / size); }
  std::int64_t end(std::int64_t count) const { return (rank + 1) * (count / size); }
  // Returns the rank that holds an expert, among those that exchange tokens.
  int holder(Expert expert) const { return static_cast<int>(expert.index / (expert.count / size)); }
  bool holds(Expert expert) const { return !expert || holder(expert) == rank; }
};

}  // namespace octet::parallel
