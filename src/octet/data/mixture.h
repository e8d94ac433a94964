// Which source gives sample number p, as a pure function of p: a table of up to 65,536 slots, repeated for ever. Source s owns
// weight_s / sum of them (rounded by largest remainder, at least one slot each), spread so that after any number of samples
// each source has given its share of them to within less than one sample.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace octet::data {

class Mixture {
 public:
  // Weights must be finite and above 0, between 1 and 1,024 of them (else Error{config}).
  explicit Mixture(std::span<const double> weights);

  struct Draw {
    std::int64_t source;
    std::int64_t ordinal;  // how many samples before this one came from the same source
  };
  // For p >= 0.
  Draw operator()(std::int64_t p) const;
  // Share of source s as the table has it.
  double share(std::int64_t s) const;

 private:
  struct Slot {
    std::int32_t source;
    std::int32_t ordinal;
  };
  std::vector<Slot> slots_;
  std::vector<std::int32_t> counts_;  // slots of each source
};

}  // namespace octet::data
