// The CPU backend of quantize.h. quantize.cpp checks the shapes, counts the work and allocates the scratch.
#pragma once

#include <cstdint>

#include "octet/kernels/quantize/quantize.h"

namespace octet::kernels::cpu {

// *out = max |x|; NaN propagates.
void amax(const Tensor& x, float* out);

// The per-tensor tile with a given scale. If amax is not null, *amax becomes max(*amax, amax of x).
void quantize_tensor(const Tensor& x, const Quantized& out, float scale, float* amax);

// Rowwise codes and scales for row, 1x128 and MX tiles.
void quantize_along_rows(const Tensor& x, const QuantSpec& spec, const Quantized& out);

// Transposed codes and scales for row, 1x128 and MX tiles.
void quantize_along_columns(const Tensor& x, const QuantSpec& spec, const Quantized& out);

// Rowwise and transposed codes and scales for the 128x128 tile.
void quantize_blocks(const Tensor& x, const QuantSpec& spec, const Quantized& out);

// Writes the zero codes after x's rows in columnwise, and scale 1 for tiles that consist only of padding.
void pad_transposed(const Tensor& x, const Quantized& out);

void transpose_codes(const Quantized& q);

void complete_codes(const QuantizeEpilogue& to);

void decode_codes(const DecodeCodes& op);

void update_delayed_scales(const UpdateDelayedScales& op);

// Sums over a group of rows. The groups are added in order, so the result does not depend on the number of threads.
struct HealthSums {
  double signal = 0, noise = 0, fourth = 0;  // sums of x^2, of squared errors and of x^4
  std::int64_t saturated = 0, flushed = 0, nonzero = 0, finite_nonzero = 0;
};
constexpr std::int64_t kHealthRows = 64;  // rows of a group
void quantize_health(const QuantizeHealth& op, HealthSums* sums);

}  // namespace octet::kernels::cpu
