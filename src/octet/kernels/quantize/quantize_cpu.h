// The CPU backend of quantize.h. Shapes have been checked, work counted and scratch given out by the callers in quantize.cpp.
#pragma once

#include <cstdint>

#include "octet/kernels/quantize/quantize.h"

namespace octet::kernels::cpu {

// *out = max |x|, NaN winning.
void amax(const Tensor& x, float* out);

// The per-tensor tile with a known scale. *amax, where given, becomes the larger of itself and x's.
void quantize_tensor(const Tensor& x, const Quantized& out, float scale, float* amax);

// Row-wise codes and scales of the row, 1x128 and MX tiles.
void quantize_along_rows(const Tensor& x, const QuantSpec& spec, const Quantized& out);

// Transposed codes and scales of the row, 1x128 and MX tiles.
void quantize_along_columns(const Tensor& x, const QuantSpec& spec, const Quantized& out);

// Both versions of the 128x128 tile.
void quantize_blocks(const Tensor& x, const QuantSpec& spec, const Quantized& out);

// The zero codes behind x's rows in codes_t, and scale 1 for tiles that hold none of x.
void pad_transposed(const Tensor& x, const Quantized& out);

void transpose_codes(const Quantized& q);

void update_delayed_scales(const UpdateDelayedScales& op);

// Sums of one run of rows; added up in order of the runs, so that the result does not depend on threads.
struct HealthSums {
  double signal = 0, noise = 0;
  std::int64_t saturated = 0, flushed = 0, nonzero = 0;
};
constexpr std::int64_t kHealthRows = 64;  // of a run
void quantize_health(const QuantizeHealth& op, HealthSums* sums);

}  // namespace octet::kernels::cpu
