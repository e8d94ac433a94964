#pragma once

#include <cstdint>

namespace octet {

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
constexpr std::int64_t round_down(std::int64_t a, std::int64_t multiple) { return a / multiple * multiple; }
constexpr std::int64_t round_up(std::int64_t a, std::int64_t multiple) { return ceil_div(a, multiple) * multiple; }

// The numbers [begin, end).
template <class T>
struct IndexRange {
  T begin = 0, end = 0;
  constexpr T count() const { return end - begin; }
  constexpr bool contains(T number) const { return begin <= number && number < end; }
  bool operator==(const IndexRange&) const = default;
};

}  // namespace octet
