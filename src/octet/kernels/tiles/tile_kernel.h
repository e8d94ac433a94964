// Products of BF16 and FP8 operands by instructions for BF16: the matrix tiles of Intel AMX, or VDPBF16PS of AVX-512 BF16.
// Operands are packed as BF16, in which every FP8 code is exact, and so is a code times a power of two. Sums are FP32.
//
// Each element of the result is summed by FMA with rounding to nearest even, in an order that depends on the kernel and on K:
//   AMX-BF16     for each 32 consecutive k, one sum of the even k and one of the odd k, both beginning at 0; their sum is added
//                to the element
//   AVX512-BF16  for each pair of k, the odd k is added to the element, and then the even k
// Bits therefore do not depend on threads, tiles, chunks of K that are multiples of 32, or layouts. BF16 operands and FP32
// results whose magnitude is below 2^-126 count as 0. Source: Intel, Architecture Instruction Set Extensions Programming
// Reference.
#pragma once

#include <cstdint>

namespace octet::kernels::cpu {

// A tile has 16 rows of 32 BF16 along K, and a sum of 16x16 FP32.
inline constexpr std::int64_t kTileRows = 16, kTileK = 32;

// [rows, k] of an operand. `stride` is the distance in elements from row to row; with K first, from k to k.
struct TileOperand {
  enum class Kind : std::uint8_t { bf16_k_last, bf16_k_first, e4m3, e4m3_k_first, e5m2, e5m2_k_first };
  Kind kind = Kind::bf16_k_last;
  const void* data = nullptr;
  std::int64_t stride = 0;
  // FP8 with K last only, optional: a power of two, or NaN, for each row and each 32 codes of K: [rows, ceil(k / 32)]
  const float* scales = nullptr;
};

enum class TileSide : std::uint8_t { a, b };

constexpr std::int64_t whole_tiles(std::int64_t x, std::int64_t step) { return (x + step - 1) / step * step; }
// Elements of a packed operand [rows, k].
constexpr std::int64_t packed_elements(std::int64_t rows, std::int64_t k) {
  return whole_tiles(rows, kTileRows) * whole_tiles(k, kTileK);
}

// Where the tiles of an operand lie, as distances in BF16 elements. The tiles of B, and packed tiles of A, have 64 bytes a row.
// A may also be an unpacked matrix with K last, if the elements of its last tiles beyond K are 0.
struct TilePanel {
  const std::uint16_t* data = nullptr;
  std::int64_t row = kTileK;               // from row to row of a tile
  std::int64_t step = kTileRows * kTileK;  // from tile to tile along K
  std::int64_t next = 0;                   // from a row of tiles to the next one

  static TilePanel packed(const std::uint16_t* data, std::int64_t k) {
    return {.data = data, .next = kTileRows * whole_tiles(k, kTileK)};
  }
  static TilePanel matrix(const void* data, std::int64_t stride) {
    return {.data = static_cast<const std::uint16_t*>(data), .row = stride, .step = kTileK, .next = kTileRows * stride};
  }
  // The panel from a row and an element of K on, which are multiples of whole tiles.
  TilePanel from(std::int64_t first_row, std::int64_t k) const {
    return {.data = data + first_row / kTileRows * next + k / kTileK * step, .row = row, .step = step, .next = next};
  }
};

struct TileProduct {
  std::int64_t m = 0, n = 0, k = 0;  // k is at least 1
  TilePanel a, b;           // [m, k] and [n, k]
  bool accumulate = false;  // adds to the sums, which otherwise are overwritten
  // sums[i * sums_stride + j] = sum over k of a[i, k] b[j, k]. There must be room for m and n rounded up to whole tiles; the
  // elements beyond m and n are also written.
  float* sums = nullptr;
  std::int64_t sums_stride = 0;
};

struct TileKernel {
  const char* name;
  // Make the tiles usable by this thread, and give them back. See TileSession.
  void (*begin)();
  void (*end)();
  // Packs [rows, k] of an operand. `out` is where tiles of this side begin, aligned to 64 bytes; `next` is the distance in
  // elements from a row of tiles to the next one. Elements beyond the rows and beyond k are 0.
  void (*pack)(const TileOperand& x, TileSide side, std::int64_t rows, std::int64_t k, std::uint16_t* out, std::int64_t next);
  // Only within a TileSession of this thread.
  void (*multiply)(const TileProduct& product);
};

// While an object lives, this thread may multiply. Beginning and ending a session takes about as long as a dozen products of
// tiles (measured on a Xeon), so use one session for many products. Sessions of a thread must not overlap.
class TileSession {
 public:
  explicit TileSession(const TileKernel& kernel) : kernel_(kernel) { kernel_.begin(); }
  ~TileSession() { kernel_.end(); }
  TileSession(const TileSession&) = delete;
  TileSession& operator=(const TileSession&) = delete;

 private:
  const TileKernel& kernel_;
};

// The kernel that products use: find_tile_kernel(), or nullptr if the environment variable OCTET_TILES is "off". Throws
// Error{config} if it is neither "on" nor "off".
const TileKernel* tile_kernel();
// Replaces the kernel, for tests. nullptr stands for a processor without one. Must not be called while products run.
void use_tile_kernel(const TileKernel* kernel);

// Return a kernel if the processor has its instructions and the system allows their use; otherwise nullptr.
const TileKernel* find_amx();
const TileKernel* find_avx512_bf16();
// Returns the fastest of these kernels on this processor, or nullptr if OpenBLAS is faster.
const TileKernel* find_tile_kernel();

}  // namespace octet::kernels::cpu
