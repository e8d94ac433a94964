// The part of RMSNorm's backward pass that processes a row. All variants use it and therefore give the same bits of gx; the order
// in which they add up gweight differs. The sum over a row has one order: the columns of a vector one after another, the 16 vectors of a tile in a tree, and the tiles of the row in a
// tree that is padded with zeros.
#pragma once

#include "octet/kernels/quantize/tiles_cuda.cuh"

namespace octet::kernels::cuda {

constexpr int kTileVectors = kTile / kVector;

// Adds neighbouring lanes, then neighbouring pairs, and so on, over kLanes lanes. Every lane gets the sum.
template <int kLanes>
__device__ float tree_sum(float value) {
#pragma unroll
  for (int distance = 1; distance < kLanes; distance *= 2) value += __shfl_xor_sync(kAllLanes, value, distance);
  return value;
}
// The same over values in registers.
template <int kCount>
__device__ float tree_sum(const float (&values)[kCount]) {
  if constexpr (kCount == 1) {
    return values[0];
  } else {
    float pairs[kCount / 2];
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) pairs[i] = values[2 * i] + values[2 * i + 1];
    return tree_sum(pairs);
  }
}

// The sum of gy * weight * n over a vector, with n = x * rstd.
__device__ inline float dot_of(const Bf16Vector& gy, const Bf16Vector& x, const Bf16Vector& weight, float rstd) {
  float g[kVector], v[kVector], w[kVector], sum = 0.0f;
  unpack(gy, g);
  unpack(x, v);
  unpack(weight, w);
#pragma unroll
  for (int k = 0; k < kVector; ++k) sum = fmaf(g[k] * w[k], v[k] * rstd, sum);
  return sum;
}

// Replaces gx by the new gx and adds gy * n to `shares`, the partial sums of gweight.
__device__ inline void add_gradient(const Bf16Vector& gy, const Bf16Vector& x, const Bf16Vector& weight, float rstd, float mean,
                                    Bf16Vector& gx, float (&shares)[kVector]) {
  float g[kVector], v[kVector], w[kVector], before[kVector];
  unpack(gy, g);
  unpack(x, v);
  unpack(weight, w);
  unpack(gx, before);
#pragma unroll
  for (int k = 0; k < kVector; ++k) {
    const float n = v[k] * rstd;
    shares[k] = fmaf(g[k], n, shares[k]);
    before[k] += rstd * (g[k] * w[k] - n * mean);
  }
  gx = pack(before);
}

}  // namespace octet::kernels::cuda
