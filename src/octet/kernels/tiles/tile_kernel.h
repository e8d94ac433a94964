// Products of BF16 and FP8 operands by the matrix tiles of a processor (Intel AMX). Operands are packed as BF16, in which every
// FP8 code is exact, and so is a code times a power of two. Sums are FP32.
//
// Each element of the result is summed in an order that depends on K alone: for each 32 consecutive k, one FP32 sum of the even k
// and one of the odd k, both by FMA and beginning at 0; their sum is then added to the element. Bits therefore do not depend on
// threads, tiles, chunks of K that are multiples of 32, or layouts. BF16 operands and FP32 results whose magnitude is below
// 2^-126 count as 0.
#pragma once

#include <cstddef>
#include <cstdint>

namespace octet::kernels::cpu {

// A tile has 16 rows of 32 BF16 along K, and a sum of 16x16 FP32.
inline constexpr std::int64_t kTileRows = 16, kTileK = 32;

// [rows, k] of an operand. `stride` is the distance in elements from row to row, for bf16_k_first from k to k.
struct TileOperand {
  enum class Kind : std::uint8_t { bf16_k_last, bf16_k_first, e4m3, e5m2 };  // FP8 has K last
  Kind kind = Kind::bf16_k_last;
  const void* data = nullptr;
  std::int64_t stride = 0;
  // FP8 only, optional: a power of two, or NaN, for each row and each 32 codes of K: [rows, ceil(k / 32)]
  const float* scales = nullptr;
};

struct TileProduct {
  std::int64_t m = 0, n = 0, k = 0;
  TileOperand a, b;         // [m, k] and [n, k]
  bool accumulate = false;  // adds to the sums, which otherwise are overwritten
  // sums[i * sums_stride + j] = sum over k of a[i, k] b[j, k]. There is room for m and n rounded up to whole tiles; what lies
  // beyond m and n is written, too.
  float* sums = nullptr;
  std::int64_t sums_stride = 0;
  void* memory = nullptr;  // packed_bytes(m, k) + packed_bytes(n, k), aligned to 64 bytes
};

constexpr std::int64_t whole_tiles(std::int64_t x, std::int64_t step) { return (x + step - 1) / step * step; }
constexpr std::int64_t packed_bytes(std::int64_t rows, std::int64_t k) {
  return whole_tiles(rows, kTileRows) * whole_tiles(k, kTileK) * 2;
}

struct TileKernel {
  const char* name;
  void (*multiply)(const TileProduct& product);
};

// The kernel of this processor, or nullptr if it has none, if the system refuses its use, or if the environment variable
// OCTET_AMX is "off".
const TileKernel* tile_kernel();
// Replaces the kernel, for tests. nullptr stands for a processor without one. Must not be called while products run.
void use_tile_kernel(const TileKernel* kernel);

// The kernel that was compiled for this kind of processor, if the processor has it; otherwise nullptr.
const TileKernel* find_tile_kernel();

}  // namespace octet::kernels::cpu
