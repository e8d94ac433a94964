// The random numbers for stochastic rounding to BF16. They depend on an element's global index, so every device and every
// sharding of a parameter rounds to the same bits.
#pragma once

#include <cstdint>

#include "octet/base/rng.h"

namespace octet::kernels {

// The 16 random bits of a global element: half-word element % 8 (low halves first) of rng.words(element / 8, step).
inline std::uint32_t rounding_bits(const Rng& rng, std::uint64_t element, std::uint32_t step) {
  const Philox4 words = rng.words(element / 8, step);
  const std::uint64_t half = element % 8;
  return (words[half / 2] >> (16 * (half % 2))) & 0xFFFFu;
}

constexpr std::int64_t kRoundingBlocks = 16;  // Philox blocks computed together, so that the rounds are vectorised
constexpr std::int64_t kRoundingRun = kRoundingBlocks * 8;

// Sets bits[i] = rounding_bits(rng, first + i, step); `first` is a multiple of 8. Not inline: if it is inlined into the loop
// that uses the bits, g++ 12 generates code that is three times slower.
void rounding_run(const Rng& rng, std::uint64_t first, std::uint32_t step, std::uint16_t (&bits)[kRoundingRun]);

}  // namespace octet::kernels
