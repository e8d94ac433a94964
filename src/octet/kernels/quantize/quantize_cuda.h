// The CUDA backend of quantize.h. quantize.cpp checks the shapes, counts the work and allocates the scratch.
#pragma once

#include <algorithm>

#include "octet/kernels/quantize/quantize.h"
#include "octet/kernels/quantize/quantize_cpu.h"

namespace octet::kernels::cuda {

// The number of amaxes of a tensor [rows, cols] that must be known before the cast: one for the tensor, or one for each row
// followed by one for each column. With groups of rows, each has one for itself or for each column. 0 for a recipe that needs
// none.
inline std::int64_t count_amaxes(const QuantSpec& spec, std::int64_t rows, std::int64_t cols, std::int64_t groups) {
  if (!needs_amax_first(spec)) return 0;
  const std::int64_t tensors = std::max<std::int64_t>(1, groups);
  return spec.tile == ScaleTile::tensor ? tensors : rows + tensors * cols;
}
// Allocates device memory for them. Returns null for a recipe that needs none.
inline float* allocate_amaxes(Arena& scratch, const QuantSpec& spec, std::int64_t rows, std::int64_t cols, std::int64_t groups) {
  const std::int64_t count = count_amaxes(spec, rows, cols, groups);
  if (count == 0) return nullptr;
  return static_cast<float*>(scratch.allocate(static_cast<std::size_t>(count) * sizeof(float)));
}
void quantize(Stream& stream, const Quantize& op, float* amaxes);
void amax(Stream& stream, const Amax& op);
void transpose_codes(Stream& stream, const Quantized& q);
void complete_codes(Stream& stream, const QuantizeEpilogue& to);
void decode_codes(Stream& stream, const DecodeCodes& op);
void update_delayed_scales(Stream& stream, const UpdateDelayedScales& op);
// `sums` has one entry for each cpu::kHealthRows rows, in device memory.
void quantize_health(Stream& stream, const QuantizeHealth& op, cpu::HealthSums* sums);

}  // namespace octet::kernels::cuda
