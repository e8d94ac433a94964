// Counter-based random numbers. A value depends only on (seed, stream, subject, position, step), so it does not depend on how
// work is divided among threads or ranks. The generator is Philox 4x32 with 10 rounds (Salmon et al., "Parallel random numbers:
// as easy as 1, 2, 3", 2011).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace octet {

// Each use has its own stream. With the same seed, different streams use different keys.
enum class RngStream : std::uint32_t {
  init = 1,            // parameter initialisation
  shuffle = 2,         // order of training samples
  round_weight = 3,    // stochastic rounding of BF16 weights
  round_moment1 = 4,   // stochastic rounding of BF16 first moments
  round_moment2 = 5,   // stochastic rounding of BF16 second moments
  generate = 6,        // sampling during text generation
  test = 7,            // unit tests
  probe = 8,           // tokens on which models are compared
  dropout = 9,         // dropout of the inputs of adapters
  gate = 10,           // matrices of `octet doctor --gate`
};

using Philox4 = std::array<std::uint32_t, 4>;

constexpr std::uint32_t kPhiloxWeyl0 = 0x9E3779B9u, kPhiloxWeyl1 = 0xBB67AE85u;

constexpr void philox_round(std::uint32_t& c0, std::uint32_t& c1, std::uint32_t& c2, std::uint32_t& c3, std::uint32_t key0,
                            std::uint32_t key1) {
  const std::uint64_t product0 = std::uint64_t{0xD2511F53u} * c0;
  const std::uint64_t product1 = std::uint64_t{0xCD9E8D57u} * c2;
  c0 = static_cast<std::uint32_t>(product1 >> 32) ^ c1 ^ key0;
  c1 = static_cast<std::uint32_t>(product1);
  c2 = static_cast<std::uint32_t>(product0 >> 32) ^ c3 ^ key1;
  c3 = static_cast<std::uint32_t>(product0);
}

// The ten rounds. `counter` is the position, `key` the seed.
constexpr Philox4 philox(Philox4 counter, std::uint32_t key0, std::uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    philox_round(counter[0], counter[1], counter[2], counter[3], key0, key1);
    key0 += kPhiloxWeyl0;
    key1 += kPhiloxWeyl1;
  }
  return counter;
}

// Stable 32-bit id of a name (FNV-1a): keys a parameter's random numbers by its name, not by its place in a list.
constexpr std::uint32_t name_id(std::string_view name) {
  std::uint32_t hash = 2166136261u;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  return hash;
}

// The numbers of one stream and one subject (a parameter, an epoch, ...).
class Rng {
 public:
  constexpr Rng(std::uint64_t seed, RngStream stream, std::uint32_t subject = 0)
      : key0_(static_cast<std::uint32_t>(seed)),
        key1_(static_cast<std::uint32_t>(seed >> 32) ^ (static_cast<std::uint32_t>(stream) * 0x85EBCA6Bu)),
        subject_(subject) {}

  // Four 32-bit words for block `position` of step `step`.
  constexpr Philox4 words(std::uint64_t position, std::uint32_t step = 0) const {
    return philox({static_cast<std::uint32_t>(position), static_cast<std::uint32_t>(position >> 32), step, subject_}, key0_, key1_);
  }
  // out[w][i] = words(position + i, step)[w], round by round for all i, which compilers vectorise.
  template <std::size_t N>
  constexpr void words(std::uint64_t position, std::uint32_t step, std::uint32_t (&out)[4][N]) const {
    for (std::size_t i = 0; i < N; ++i) {
      out[0][i] = static_cast<std::uint32_t>(position + i);
      out[1][i] = static_cast<std::uint32_t>((position + i) >> 32);
      out[2][i] = step;
      out[3][i] = subject_;
    }
    std::uint32_t key0 = key0_, key1 = key1_;
    for (int round = 0; round < 10; ++round) {
      for (std::size_t i = 0; i < N; ++i) philox_round(out[0][i], out[1][i], out[2][i], out[3][i], key0, key1);
      key0 += kPhiloxWeyl0;
      key1 += kPhiloxWeyl1;
    }
  }
  // The two key words of a round, 0 to 9.
  constexpr std::array<std::uint32_t, 2> round_key(std::uint32_t round) const {
    return {key0_ + round * kPhiloxWeyl0, key1_ + round * kPhiloxWeyl1};
  }
  constexpr std::uint64_t word64(std::uint64_t position, std::uint32_t step = 0) const {
    const Philox4 w = words(position, step);
    return (std::uint64_t{w[1]} << 32) | w[0];
  }
  // Uniform in [0, 1), a multiple of 2^-53.
  constexpr double uniform(std::uint64_t position, std::uint32_t step = 0) const {
    return static_cast<double>(word64(position, step) >> 11) * 0x1p-53;
  }
  // Standard normal of element `position` (Box-Muller).
  double normal(std::uint64_t position) const;

 private:
  std::uint32_t key0_, key1_, subject_;
};

}  // namespace octet
