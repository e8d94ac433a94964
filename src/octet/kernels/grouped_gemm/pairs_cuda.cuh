// Two neighbouring elements of a result.
#pragma once

#include <cuda_bf16.h>

#include <type_traits>

namespace octet::kernels::cuda {

template <class T>
using PairOf = std::conditional_t<std::is_same_v<T, float>, float2, __nv_bfloat162>;

__device__ float2 widen(float2 pair) { return pair; }
__device__ float2 widen(__nv_bfloat162 pair) { return __bfloat1622float2(pair); }
template <class Pair>
__device__ Pair narrow(float2 x) {
  if constexpr (std::is_same_v<Pair, float2>) {
    return x;
  } else {
    return __floats2bfloat162_rn(x.x, x.y);
  }
}
__device__ float2 sum_of(float2 x, float2 y) { return {x.x + y.x, x.y + y.y}; }

}  // namespace octet::kernels::cuda
