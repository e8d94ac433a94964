// Sums over the threads of a block.
#pragma once

namespace octet::kernels::cuda {

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
