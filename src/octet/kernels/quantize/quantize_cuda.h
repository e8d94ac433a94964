// The CUDA backend of quantize.h. Shapes have been checked, work counted and scratch given out in quantize.cpp.
#pragma once

#include "octet/kernels/quantize/quantize.h"
#include "octet/kernels/quantize/quantize_cpu.h"

namespace octet::kernels::cuda {

// Device memory for what scales of a tensor [rows, cols] itself are made of: its amax, or those of its rows and then its columns.
// Null for a recipe whose scales need no look ahead.
inline float* allocate_amaxes(Arena& scratch, const QuantSpec& spec, std::int64_t rows, std::int64_t cols) {
  if (!needs_amax_first(spec)) return nullptr;
  const std::int64_t count = spec.tile == ScaleTile::tensor ? 1 : rows + cols;
  return static_cast<float*>(scratch.allocate(static_cast<std::size_t>(count) * sizeof(float)));
}
void quantize(Queue& queue, const Quantize& op, float* amaxes);
void amax(Queue& queue, const Amax& op);
void transpose_codes(Queue& queue, const Quantized& q);
void update_delayed_scales(Queue& queue, const UpdateDelayedScales& op);
// One entry of `sums` for each cpu::kHealthRows rows, in device memory.
void quantize_health(Queue& queue, const QuantizeHealth& op, cpu::HealthSums* sums);

}  // namespace octet::kernels::cuda
