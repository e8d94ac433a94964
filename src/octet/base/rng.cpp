#include "octet/base/rng.h"

#include <cmath>
#include <numbers>

namespace octet {

double Rng::normal(std::uint64_t position) const {
  const Philox4 w = words(position);
  // (0, 1]: the logarithm of zero is never taken.
  const double u = (static_cast<double>(w[0]) + 1.0) * 0x1p-32;
  const double v = static_cast<double>(w[1]) * 0x1p-32;
  return std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * std::numbers::pi * v);
}

}  // namespace octet
