#include "octet/app/exact_product.h"

#include <algorithm>

#include "octet/base/require.h"
#include "octet/base/rng.h"

namespace octet::app {
namespace {

// FP32 holds all integers up to here. With vectors of up to 2^20 and rows of up to 2^19 elements the sums below fit into 64
// bits.
constexpr float kLargestSum = 0x1p24f;
constexpr std::int64_t kLongestRow = std::int64_t{1} << 19;
constexpr std::uint32_t kVectorBits = 20;

enum Subject : std::uint32_t { kA, kB, kVector };

std::vector<std::int8_t> random_integers(std::int64_t count, int largest, std::uint64_t seed, Subject subject) {
  const Rng rng(seed, RngStream::gate, subject);
  const auto values = static_cast<std::uint32_t>(2 * largest + 1);
  std::vector<std::int8_t> result(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < result.size(); i += 4) {
    const Philox4 words = rng.words(i / 4);
    for (std::size_t j = i; j < std::min(i + 4, result.size()); ++j)
      result[j] = static_cast<std::int8_t>(static_cast<int>(words[j - i] % values) - largest);
  }
  return result;
}

// No other float may be converted to such an integer.
bool is_sum(float value) {
  return value >= -kLargestSum && value <= kLargestSum && value == static_cast<float>(static_cast<int>(value));
}

}  // namespace

ExactProduct::ExactProduct(const ProductShape& shape, int largest_a, int largest_b, std::uint64_t seed)
    : shape_(shape),
      a_(random_integers(shape.m * shape.k, largest_a, seed, kA)),
      b_(random_integers(shape.n * shape.k, largest_b, seed, kB)),
      vector_(static_cast<std::size_t>(shape.n)),
      expected_(static_cast<std::size_t>(shape.m)) {
  require(shape.n <= kLongestRow && static_cast<float>(shape.k * largest_a * largest_b) <= kLargestSum,
          "exact product: ", shape.m, " x ", shape.n, " x ", shape.k, " of integers up to ", largest_a, " and ", largest_b,
          " has sums that FP32 cannot hold");
  const Rng rng(seed, RngStream::gate, kVector);
  for (std::size_t j = 0; j < vector_.size(); ++j)
    vector_[j] = 1 + static_cast<std::int32_t>(rng.words(j)[0] >> (32 - kVectorBits));
  const auto depth = static_cast<std::size_t>(shape.k);
  std::vector<std::int64_t> of_b(depth);
  for (std::size_t j = 0; j < vector_.size(); ++j) {
    for (std::size_t k = 0; k < depth; ++k) of_b[k] += std::int64_t{b_[j * depth + k]} * vector_[j];
  }
  for (std::size_t i = 0; i < expected_.size(); ++i) {
    for (std::size_t k = 0; k < depth; ++k) expected_[i] += a_[i * depth + k] * of_b[k];
  }
}

std::string ExactProduct::wrong_element(std::span<const float> product) const {
  const auto width = static_cast<std::size_t>(shape_.n);
  require(product.size() == expected_.size() * width, "exact product: ", product.size(), " elements");
  for (std::size_t i = 0; i < expected_.size(); ++i) {
    const float* const row = product.data() + i * width;
    std::int64_t sum = 0;
    bool integers = true;
    for (std::size_t j = 0; j < width; ++j) {
      integers = integers && is_sum(row[j]);
      sum += static_cast<std::int64_t>(integers ? row[j] : 0) * vector_[j];
    }
    if (!integers || sum != expected_[i]) return wrong_element_of_row(static_cast<std::int64_t>(i), row);
  }
  return "";
}

std::string ExactProduct::wrong_element_of_row(std::int64_t row, const float* values) const {
  const std::int8_t* const a = a_.data() + row * shape_.k;
  for (std::int64_t j = 0; j < shape_.n; ++j) {
    const std::int8_t* const b = b_.data() + j * shape_.k;
    std::int64_t exact = 0;
    for (std::int64_t k = 0; k < shape_.k; ++k) exact += a[k] * b[k];
    if (!(values[j] == static_cast<float>(exact)))
      return concat("element [", row, ", ", j, "] is ", values[j], " instead of ", exact);
  }
  // Only the check itself can have failed, on the processor.
  return concat("row ", row, " has another sum when it is added up again");
}

}  // namespace octet::app
