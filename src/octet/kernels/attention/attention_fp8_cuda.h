// The numbers that cuDNN's attention in FP8 reads and writes in addition to its operands. They lie in device memory.
#pragma once

#include <array>
#include <cstdint>

#include "octet/kernels/attention/attention.h"

namespace octet::kernels::cuda {

// In the order of their uids. Amaxes are those of the values, before they are scaled.
enum class Fp8Scalar : std::uint8_t { q_scale_inv, k_scale_inv, v_scale_inv, p_scale_inv, p_scale, o_scale, p_amax, o_amax };
inline constexpr std::size_t kFp8Scalars = 8;
// clang-format off
enum class Fp8BackwardScalar : std::uint8_t {
  q_scale_inv, k_scale_inv, v_scale_inv, o_scale_inv, go_scale_inv, p_scale_inv, ds_scale_inv,
  p_scale, ds_scale, gq_scale, gk_scale, gv_scale, ds_amax, gq_amax, gk_amax, gv_amax
};
// clang-format on
inline constexpr std::size_t kFp8BackwardScalars = 16;

// Returns the addresses of the scalars. Those that are not part of op's operands lie in `memory`, which has room for all.
std::array<void*, kFp8Scalars> fp8_scalars(const AttentionForwardFp8& op, float* memory);
std::array<void*, kFp8BackwardScalars> fp8_scalars(const AttentionBackwardFp8& op, float* memory);
// Sets the scalars in `memory` that cuDNN reads.
void prepare_fp8_scalars(Stream& stream, const AttentionForwardFp8& op, float* memory);
void prepare_fp8_scalars(Stream& stream, const AttentionBackwardFp8& op, float* memory);
// Raises the recorded amaxes to those that cuDNN has found, if amaxes are recorded, and writes the scale_inv of results.
void take_fp8_scalars(Stream& stream, const AttentionForwardFp8& op, const float* memory);
void take_fp8_scalars(Stream& stream, const AttentionBackwardFp8& op, const float* memory);

}  // namespace octet::kernels::cuda
