#include "octet/kernels/adamw/stochastic_rounding.h"

namespace octet::kernels {

void rounding_run(const Rng& rng, std::uint64_t first, std::uint32_t step, std::uint16_t (&bits)[kRoundingRun]) {
  std::uint32_t words[4][kRoundingBlocks];
  rng.words(first / 8, step, words);
  std::uint32_t by_block[kRoundingBlocks * 4];
  for (std::int64_t b = 0; b < kRoundingBlocks; ++b) {
    for (std::int64_t w = 0; w < 4; ++w) by_block[b * 4 + w] = words[w][b];
  }
  for (std::int64_t i = 0; i < kRoundingBlocks * 4; ++i) {
    bits[2 * i] = static_cast<std::uint16_t>(by_block[i] & 0xFFFFu);
    bits[2 * i + 1] = static_cast<std::uint16_t>(by_block[i] >> 16);
  }
}

}  // namespace octet::kernels
