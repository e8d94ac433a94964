// Four neighbouring lanes exchange words, so that each of them loads and stores 16 bytes of a row of BF16.
#pragma once

#include <cuda_bf16.h>

namespace octet::kernels::cuda {

__device__ float2 unpack(unsigned word) { return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&word)); }
__device__ unsigned pack(float2 x) {
  const __nv_bfloat162 packed = __floats2bfloat162_rn(x.x, x.y);
  return *reinterpret_cast<const unsigned*>(&packed);
}

// Word t of lane l becomes word l of lane t, within four lanes.
__device__ void transpose_words(unsigned (&words)[4]) {
  const int lane = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int step = 1; step <= 2; ++step) {
    const bool upper = lane & step;
    const int other = step == 1 ? 2 : 1;  // the distance between the two words that are exchanged
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      unsigned& low = words[i * other];
      unsigned& high = words[i * other + step];
      const unsigned received = __shfl_xor_sync(0xFFFFFFFFu, upper ? low : high, step);
      (upper ? low : high) = received;
    }
  }
}

}  // namespace octet::kernels::cuda
