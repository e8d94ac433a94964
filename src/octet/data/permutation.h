// A pseudo-random permutation of [0, n) in O(1) memory: a balanced Feistel network over the next power of four, with cycle walking. A
// value outside [0, n) goes through the network again; on average, a value passes at most four times. The permutation is a pure
// function of the constructor's arguments.
#pragma once

#include <bit>
#include <cstdint>

#include "octet/base/require.h"
#include "octet/base/rng.h"

namespace octet::data {

class Permutation {
 public:
  // `seed`, `epoch` and `subject` together choose the permutation.
  Permutation(std::int64_t n, std::uint64_t seed, std::uint32_t epoch, std::uint32_t subject)
      : n_(static_cast<std::uint64_t>(n)), epoch_(epoch), rng_(seed, RngStream::shuffle, subject) {
    require(n >= 1, "permutation: n must be positive, got ", n);
    const int bits = n_ > 1 ? static_cast<int>(std::bit_width(n_ - 1)) : 1;
    half_bits_ = (bits + 1) / 2;
  }

  std::int64_t size() const { return static_cast<std::int64_t>(n_); }

  // Maps i in [0, n) to a number in [0, n); the map is a bijection.
  std::int64_t operator()(std::int64_t i) const {
    require(i >= 0 && static_cast<std::uint64_t>(i) < n_, "permutation: ", i, " is outside [0, ", n_, ")");
    auto x = static_cast<std::uint64_t>(i);
    do x = network(x);
    while (x >= n_);
    return static_cast<std::int64_t>(x);
  }

 private:
  // Four rounds give a strong pseudo-random permutation of a large domain (Luby and Rackoff, 1988). A small domain needs more.
  static constexpr std::uint32_t kRounds = 8;

  std::uint64_t network(std::uint64_t x) const {
    const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
    std::uint64_t left = x >> half_bits_, right = x & mask;
    for (std::uint64_t round = 0; round < kRounds; ++round) {
      const std::uint64_t mixed = left ^ (rng_.word64(right | (round << 32), epoch_) & mask);
      left = right;
      right = mixed;
    }
    return (left << half_bits_) | right;
  }

  std::uint64_t n_;
  std::uint32_t epoch_;
  Rng rng_;
  int half_bits_ = 1;
};

}  // namespace octet::data
