// A matrix product that is known exactly, to find a processor or a GPU that computes wrongly.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace octet::app {

struct ProductShape {
  std::int64_t m = 0, n = 0, k = 0;
};

// A · Bᵀ of small random integers. BF16 and E4M3 represent the factors exactly. Every partial sum of one element is an integer
// of at most k * largest_a * largest_b. If an accumulator has enough bits for it, the result is exact in any order of
// summation.
class ExactProduct {
 public:
  ExactProduct(const ProductShape& shape, int largest_a, int largest_b, std::uint64_t seed);

  const ProductShape& shape() const { return shape_; }
  const std::vector<std::int8_t>& a() const { return a_; }  // [m, k]
  const std::vector<std::int8_t>& b() const { return b_; }  // [n, k]

  // Compares a computed product [m, n] with the exact one. Returns "" or a clause that names an element and both values. This
  // is Freivalds' check in integers: instead of multiplying again, it compares D·r with A·(Bᵀ·r) for a random vector r. No
  // element of r is zero, so a single wrong element of a row is always found. Several in one row escape with a probability
  // below 1e-6.
  std::string wrong_element(std::span<const float> product) const;

 private:
  std::string wrong_element_of_row(std::int64_t row, const float* values) const;

  ProductShape shape_;
  std::vector<std::int8_t> a_, b_;
  std::vector<std::int32_t> vector_;    // r, [n]
  std::vector<std::int64_t> expected_;  // A·(Bᵀ·r), [m]
};

}  // namespace octet::app
