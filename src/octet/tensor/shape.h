// The shape of a tensor.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <ostream>
#include <string>

#include "octet/base/require.h"

namespace octet {

// The dimensions of a tensor, at most four.
class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<std::int64_t> dims) {
    for (const std::int64_t dim : dims) push_back(dim);
  }
  void push_back(std::int64_t dim) {
    require(rank_ < 4, "a shape has at most 4 dims");
    dims_[static_cast<std::size_t>(rank_++)] = dim;
  }
  int rank() const { return rank_; }
  std::int64_t operator[](int i) const { return dims_[static_cast<std::size_t>(i)]; }
  std::int64_t& operator[](int i) { return dims_[static_cast<std::size_t>(i)]; }
  std::int64_t elements() const {
    std::int64_t product = 1;
    for (int i = 0; i < rank_; ++i) product *= (*this)[i];
    return product;
  }
  // Compares only the dims within the rank. A defaulted operator would compare all four, but g++ 12 at -O2 does not always leave
  // the others 0: its SLP vectoriser sometimes turns Shape{n, n} into four copies of n.
  bool operator==(const Shape& other) const {
    return rank_ == other.rank_ && std::equal(dims_.begin(), dims_.begin() + rank_, other.dims_.begin());
  }
  // "[2, 3]"
  std::string text() const {
    std::string result = "[";
    for (int i = 0; i < rank_; ++i) result += (i ? ", " : "") + std::to_string((*this)[i]);
    return result + "]";
  }
  friend std::ostream& operator<<(std::ostream& out, const Shape& shape) { return out << shape.text(); }

 private:
  std::array<std::int64_t, 4> dims_{};
  int rank_ = 0;
};

}  // namespace octet
