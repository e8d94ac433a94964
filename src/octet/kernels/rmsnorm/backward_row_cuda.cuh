// The part of RMSNorm's backward pass that processes a row. All variants use it and therefore give the same bits. The sum over a
// row has one order: the columns of a chunk one after another, the 16 chunks of a tile in a tree, and the tiles of the row in a
// tree that is padded with zeros.
#pragma once

#include "octet/kernels/quantize/tiles_cuda.cuh"

namespace octet::kernels::cuda {

constexpr int kTileChunks = kTile / kChunk;

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

// The sum of gy * weight * n over a chunk, with n = x * rstd.
__device__ inline float dot_of(const Chunk& gy, const Chunk& x, const Chunk& weight, float rstd) {
  float g[kChunk], v[kChunk], w[kChunk], sum = 0.0f;
  unpack(gy, g);
  unpack(x, v);
  unpack(weight, w);
#pragma unroll
  for (int k = 0; k < kChunk; ++k) sum = fmaf(g[k] * w[k], v[k] * rstd, sum);
  return sum;
}

// Replaces gx by the new gx and adds gy * n to `shares`, the partial sums of gweight.
__device__ inline void add_gradient(const Chunk& gy, const Chunk& x, const Chunk& weight, float rstd, float mean, Chunk& gx,
                                    float (&shares)[kChunk]) {
  float g[kChunk], v[kChunk], w[kChunk], before[kChunk];
  unpack(gy, g);
  unpack(x, v);
  unpack(weight, w);
  unpack(gx, before);
#pragma unroll
  for (int k = 0; k < kChunk; ++k) {
    const float n = v[k] * rstd;
    shares[k] = fmaf(g[k], n, shares[k]);
    before[k] += rstd * (g[k] * w[k] - n * mean);
  }
  gx = pack(before);
}

}  // namespace octet::kernels::cuda
