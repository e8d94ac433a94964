// The largest magnitudes of a tile of BF16 values in registers: of the part that a warp holds, of rows and of columns. Magnitudes
// are compared as integers of 15 bits, which puts NaN above infinity. A register holds two of them.
#pragma once

#include "octet/kernels/quantize/tiles_cuda.cuh"

namespace octet::kernels::cuda {

// The larger of the two low halves and the larger of the two high halves.
__device__ inline unsigned max_pair(unsigned a, unsigned b) { return __vmaxu2(a, b); }
// Two magnitudes: the largest of the elements in low halves and the largest of those in high halves.
__device__ inline unsigned magnitudes(const Bf16Vector& vector) {
  constexpr unsigned kMask = 0x7FFF7FFFu;
  const uint4& words = vector.parts[0];
  return max_pair(max_pair(words.x & kMask, words.y & kMask), max_pair(words.z & kMask, words.w & kMask));
}
__device__ inline float magnitude_value(unsigned bits) { return __uint_as_float(bits << 16); }

// Raises an amax in global memory to `value`, which is not negative, or NaN.
__device__ inline void raise(float* amax, float value) { atomicMax(reinterpret_cast<unsigned*>(amax), __float_as_uint(value)); }

// The bits of the largest magnitude of the warp's vectors.
__device__ inline unsigned warp_magnitude(const Bf16Vector (&values)[kTileRows]) {
  unsigned largest = 0;
#pragma unroll
  for (int i = 0; i < kTileRows; ++i) largest = max_pair(largest, magnitudes(values[i]));
  return __reduce_max_sync(kAllLanes, max(largest & 0xFFFFu, largest >> 16));
}

// The largest magnitudes of the thread's rows over the 8 kSpan columns of kSpan neighbouring lanes. Word i has those of rows 2 i
// (low half) and 2 i + 1.
template <int kSpan>
__device__ void row_magnitudes(const Bf16Vector (&values)[kTileRows], unsigned (&pairs)[kTileRows / 2]) {
#pragma unroll
  for (int i = 0; i < kTileRows / 2; ++i) {
    const unsigned even = magnitudes(values[2 * i]), odd = magnitudes(values[2 * i + 1]);
    pairs[i] = max_pair(__byte_perm(even, odd, 0x5410), __byte_perm(even, odd, 0x7632));
#pragma unroll
    for (int lane = kSpan / 2; lane > 0; lane /= 2) pairs[i] = max_pair(pairs[i], __shfl_xor_sync(kAllLanes, pairs[i], lane));
  }
}
// The magnitude of row i.
__device__ inline unsigned row_of_pairs(const unsigned (&pairs)[kTileRows / 2], int i) {
  const unsigned pair = i & 4 ? (i & 2 ? pairs[3] : pairs[2]) : (i & 2 ? pairs[1] : pairs[0]);
  return i & 1 ? pair >> 16 : pair & 0xFFFFu;
}

// The largest magnitudes of the columns of each warp's 16 rows.
struct ColumnMagnitudes {
  Bf16Vector warps[kTileThreads / 32][kTile / kVector];

  // A barrier is needed between put() and get().
  __device__ void put(const Tile& tile, const Bf16Vector (&values)[kTileRows]) {
    constexpr unsigned kMask = 0x7FFF7FFFu;
    Bf16Vector magnitudes{};
    uint4& largest = magnitudes.parts[0];
#pragma unroll
    for (int i = 0; i < kTileRows; ++i) {
      const uint4& words = values[i].parts[0];
      largest.x = max_pair(largest.x, words.x & kMask);
      largest.y = max_pair(largest.y, words.y & kMask);
      largest.z = max_pair(largest.z, words.z & kMask);
      largest.w = max_pair(largest.w, words.w & kMask);
    }
    largest.x = max_pair(largest.x, __shfl_xor_sync(kAllLanes, largest.x, 16));
    largest.y = max_pair(largest.y, __shfl_xor_sync(kAllLanes, largest.y, 16));
    largest.z = max_pair(largest.z, __shfl_xor_sync(kAllLanes, largest.z, 16));
    largest.w = max_pair(largest.w, __shfl_xor_sync(kAllLanes, largest.w, 16));
    if (tile.lane() < 16) warps[tile.warp()][tile.vector()] = magnitudes;
  }
  // The largest magnitude of a column over warps [first, first + count).
  template <int kCount>
  __device__ unsigned get(int column, int first = 0) const {
    unsigned largest = 0;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      largest = max(largest, unsigned{reinterpret_cast<const std::uint16_t*>(warps[first + i])[column]});
    }
    return largest;
  }
};

}  // namespace octet::kernels::cuda
