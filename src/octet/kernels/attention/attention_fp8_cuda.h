// The numbers that cuDNN's attention in FP8 reads and writes beside its operands, in device memory.
#pragma once

#include <array>
#include <cstdint>

#include "octet/kernels/attention/attention.h"

namespace octet::kernels::cuda {

// In the order of their uids. Amaxes are those of the values, before they are scaled.
enum class Fp8Scalar : std::uint8_t { q_scale_inv, k_scale_inv, v_scale_inv, p_scale_inv, p_scale, o_scale, p_amax, o_amax };
inline constexpr std::size_t kFp8Scalars = 8;

// Returns the addresses of the scalars. Those that are not part of op's operands lie in `memory`, [kFp8Scalars].
std::array<void*, kFp8Scalars> fp8_scalars(const AttentionForwardFp8& op, float* memory);
// Sets the scalars in `memory` that cuDNN reads.
void prepare_fp8_scalars(Stream& stream, float* memory);
// Raises *op.o.amax to the amax of O, if amaxes are recorded, and writes the scale_inv of O.
void take_fp8_scalars(Stream& stream, const AttentionForwardFp8& op, const float* memory);

}  // namespace octet::kernels::cuda
