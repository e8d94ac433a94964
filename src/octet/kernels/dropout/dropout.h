// Dropout (Srivastava et al., 2014) without its scale, which callers give to the product that reads the result.
#pragma once

#include "octet/device/device.h"
#include "octet/tensor/row_groups.h"
#include "octet/tensor/tensor.h"

namespace octet::kernels {

// y = m x, or y += m x with one rounding. m[t, f] is 0 with the probability `rate`, and 1 otherwise.
//
// Element m[t, f] depends on nothing but the seed, the subject, the step, the number of the token, the expert and the feature, so
// every device, mesh and division into micro-batches gives the same mask. With F = first_feature + f, the mask is 1 if
//     Rng(seed, RngStream::dropout, subject).words(tokens[t] << 32 | expert << kFeatureBits | F / 4, step)[F % 4]
// is at least rate · 2^32.
inline constexpr int kFeatureBits = 20;  // of the number of four features; expert numbers have the other 12 bits
struct Dropout {
  Tensor x;           // [T, C] BF16, F32 or F64; rows may be strided
  Tensor y;           // of x's shape and dtype; overwritten or accumulated into; may be x
  bool adds = false;  // m x is added to y
  double rate = 0;    // in [0, 1)
  std::uint64_t seed = 0;
  std::uint32_t subject = 0, step = 0;
  Tensor tokens;                   // [T] I32, read as numbers without a sign
  std::int64_t first_feature = 0;  // of the first column
  // Rows of group g belong to expert first_expert + g. Rows of no group are neither read nor written. Without groups there is one
  // expert, number 0.
  RowGroups groups = {};
  std::int64_t first_expert = 0;

  std::uint32_t threshold() const { return static_cast<std::uint32_t>(rate * 0x1p32); }
};
void dropout(Stream& stream, const Dropout& op);

}  // namespace octet::kernels
