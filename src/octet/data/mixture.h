// Chooses the source of sample number p, as a pure function of p. A table of at most 65,536 slots is repeated for ever. Source s owns
// the fraction weight_s / (sum of all weights) of the slots, rounded by the largest-remainder method and at least one slot. The slots
// are spread so that, after any number of samples, each source has given its share to within less than one sample.
// Source: Tijdeman, "The chairman assignment problem", Discrete Mathematics 32 (1980).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace octet::data {

class Mixture {
 public:
  // Takes 1 to 1,024 weights, each finite and greater than 0. Throws Error{config} otherwise.
  explicit Mixture(std::span<const double> weights);

  struct Draw {
    std::int64_t source;
    std::int64_t ordinal;  // number of earlier samples that came from the same source
  };
  // The source of sample p >= 0.
  Draw operator()(std::int64_t p) const;
  // How many of the first p >= 0 samples come from source s.
  std::int64_t drawn(std::int64_t s, std::int64_t p) const;
  // The fraction of the slots that source s owns.
  double share(std::int64_t s) const;

 private:
  struct Slot {
    std::int32_t source;
    std::int32_t ordinal;
  };
  std::vector<Slot> slots_;
  std::vector<std::int32_t> counts_;  // number of slots of each source
};

}  // namespace octet::data
