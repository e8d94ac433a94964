// How AdamW keeps its moments in FP8 (docs/numerics.md, "FP8 moments"). kMomentGroup consecutive elements of the whole parameter
// share one FP32 scale, and a value is its code times the scale. The first moment is kept as it is, the second one as its root,
// whose exponents have half the range. A GPU and the CPU compute the same bits.
#pragma once

#include <cstdint>

#include "octet/base/math.h"
#include "octet/numerics/float8.h"
#include "octet/numerics/recipe.h"

namespace octet::kernels {

constexpr std::int64_t kMomentGroup = 128;
// The number of scales of `elements` elements from a multiple of kMomentGroup on.
constexpr std::int64_t moment_scales(std::int64_t elements) { return ceil_div(elements, kMomentGroup); }

// The rule by which the scale follows from the largest magnitude of a group (numerics/scale.h). It gives the factor by which
// values are multiplied; 1 / factor is stored.
constexpr QuantSpec moment_spec() { return {.format = Fp8Format::e4m3, .tile = ScaleTile::row, .source = ScaleSource::tensor}; }

// Rounds a value times the factor of its group to a code, with 16 random bits.
constexpr std::uint8_t encode_moment(float scaled, std::uint32_t random_bits) {
  return encode_fp8_stochastic(Fp8Format::e4m3, scaled, random_bits << 16);
}
// The same for the root of a second moment. A moment that is not zero gets a code that is not zero, because its root is a
// divisor.
constexpr std::uint8_t encode_root(float scaled, std::uint32_t random_bits, bool is_zero) {
  const std::uint8_t code = encode_moment(scaled, random_bits);
  return code == 0 && !is_zero ? std::uint8_t{1} : code;
}

}  // namespace octet::kernels
