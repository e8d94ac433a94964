#include "octet/base/rng.h"

#include <cmath>

#include "octet/base/normal.h"

namespace octet {

double Rng::normal(std::uint64_t position) const {
  const Philox4 w = words(position);
  const BoxMuller n = box_muller(w[0], w[1]);
  return std::sqrt(n.radius_squared) * n.cosine;
}

}  // namespace octet
