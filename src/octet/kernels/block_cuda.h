// Shared by memory-bound kernels: groups of eight elements in 16-byte accesses, and sums over a block.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>
#include <type_traits>

#include "octet/numerics/bfloat16.h"

namespace octet::kernels::cuda {

inline constexpr int kWidth = 8;

// Eight consecutive elements as they are stored.
template <class T>
struct Eight {
  static constexpr int kParts = kWidth * static_cast<int>(sizeof(T)) / 16;
  uint4 parts[kParts];
};

// Whether every pointer is aligned for an Eight.
template <class... T>
bool are_aligned(const T*... pointers) {
  return ((reinterpret_cast<std::uintptr_t>(pointers) % 16 == 0) && ...);
}

template <class T>
__device__ Eight<T> load_eight(const T* from) {
  Eight<T> result;
  for (int i = 0; i < Eight<T>::kParts; ++i) result.parts[i] = reinterpret_cast<const uint4*>(from)[i];
  return result;
}
// Uses inline assembler because the compiler splits some of these stores.
template <class T>
__device__ void store_eight(T* to, const Eight<T>& values) {
  for (int i = 0; i < Eight<T>::kParts; ++i) {
    const uint4& p = values.parts[i];
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(reinterpret_cast<uint4*>(to) + i), "r"(p.x), "r"(p.y), "r"(p.z),
                 "r"(p.w)
                 : "memory");
  }
}

__device__ inline void widen(float (&out)[kWidth], const Eight<float>& in) {
  for (int i = 0; i < 2; ++i) {
    out[4 * i] = __uint_as_float(in.parts[i].x);
    out[4 * i + 1] = __uint_as_float(in.parts[i].y);
    out[4 * i + 2] = __uint_as_float(in.parts[i].z);
    out[4 * i + 3] = __uint_as_float(in.parts[i].w);
  }
}
__device__ inline void widen(float (&out)[kWidth], const Eight<BFloat16>& in) {
  const std::uint32_t words[] = {in.parts[0].x, in.parts[0].y, in.parts[0].z, in.parts[0].w};
  for (int i = 0; i < 4; ++i) {
    out[2 * i] = __uint_as_float(words[i] << 16);
    out[2 * i + 1] = __uint_as_float(words[i] & 0xFFFF0000u);
  }
}

// Rounds to nearest like BFloat16(value), but in one instruction and with 0x7FFF for every NaN.
__device__ inline BFloat16 to_bf16(float value) { return BFloat16::from_bits(__bfloat16_as_ushort(__float2bfloat16_rn(value))); }

// Rounds each element to nearest.
template <class T>
__device__ Eight<T> narrow(const float (&in)[kWidth]) {
  std::uint32_t words[4 * Eight<T>::kParts];
  if constexpr (std::is_same_v<T, float>) {
    for (int i = 0; i < kWidth; ++i) words[i] = __float_as_uint(in[i]);
  } else {
    for (int i = 0; i < 4; ++i) {
      const __nv_bfloat162 pair = __floats2bfloat162_rn(in[2 * i], in[2 * i + 1]);
      words[i] = std::uint32_t{__bfloat16_as_ushort(pair.x)} | std::uint32_t{__bfloat16_as_ushort(pair.y)} << 16;
    }
  }
  Eight<T> result;
  for (int i = 0; i < Eight<T>::kParts; ++i) {
    result.parts[i] = {words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3]};
  }
  return result;
}

// The sum over a block of whole warps, for every thread, in a fixed tree.
template <class T>
__device__ T block_sum(T value) {
  __shared__ T warps[32];
  const auto over_warp = [](T sum) {
    for (int lanes = 16; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(~0u, sum, lanes);
    return sum;
  };
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  value = over_warp(value);
  __syncthreads();  // `warps` may still be read from an earlier sum
  if (lane == 0) warps[warp] = value;
  __syncthreads();
  return over_warp(lane < static_cast<int>(blockDim.x) / 32 ? warps[lane] : T{0});
}

}  // namespace octet::kernels::cuda
