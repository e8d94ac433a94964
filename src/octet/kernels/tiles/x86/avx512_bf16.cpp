// Products by VDPBF16PS of AVX-512 BF16, for processors without AMX. CMakeLists.txt compiles this file for AVX-512.
#include "octet/kernels/tiles/pack_tiles.h"
#include "octet/kernels/tiles/x86/avx512_packing.h"

namespace octet::kernels::cpu {
namespace {

struct PairProduct : Avx512Packing<PairProduct> {
  // Computes kRows x 16 kColumns sums in registers. A vector of B holds one pair of k of 16 columns, and is multiplied by the
  // same pair of each row of A.
  template <int kRows, int kColumns>
  [[gnu::always_inline]] static void multiply_block(const TileProduct& p, TilePanel a, TilePanel b, float* sums) {
    __m512 sum[kRows][kColumns];
    for (int i = 0; i < kRows; ++i) {
      for (int j = 0; j < kColumns; ++j)
        sum[i][j] = p.accumulate ? _mm512_loadu_ps(sums + i * p.sums_stride + j * kTileRows) : _mm512_setzero_ps();
    }
    for (std::int64_t k = 0; k < p.k; k += kTileK, a.data += a.step, b.data += b.step) {
      for (int pair = 0; pair < kTileK / 2; ++pair) {
        __m512bh columns[kColumns];
        for (int j = 0; j < kColumns; ++j)
          columns[j] = reinterpret_cast<__m512bh>(_mm512_loadu_si512(b.data + j * b.next + pair * kTileK));
        for (int i = 0; i < kRows; ++i) {
          std::int32_t both;
          std::memcpy(&both, a.data + i * a.row + 2 * pair, sizeof both);
          const auto row = reinterpret_cast<__m512bh>(_mm512_set1_epi32(both));
          for (int j = 0; j < kColumns; ++j) sum[i][j] = _mm512_dpbf16_ps(sum[i][j], row, columns[j]);
        }
      }
    }
    for (int i = 0; i < kRows; ++i) {
      for (int j = 0; j < kColumns; ++j) _mm512_storeu_ps(sums + i * p.sums_stride + j * kTileRows, sum[i][j]);
    }
  }

  static void multiply(const TileProduct& p) {
    constexpr std::int64_t kHalf = kTileRows / 2;
    // Two columns of tiles of B stay in the first-level cache while all of A passes.
    for (std::int64_t j = 0; j < p.n; j += 2 * kTileRows) {
      const TilePanel b = p.b.from(j, 0);
      for (std::int64_t i = 0; i < p.m; i += kTileRows) {
        TilePanel a = p.a.from(i, 0);
        float* sums = p.sums + i * p.sums_stride + j;
        if (p.n - j <= kTileRows) {
          multiply_block<kTileRows, 1>(p, a, b, sums);
        } else {
          multiply_block<kHalf, 2>(p, a, b, sums);
          a.data += kHalf * a.row;
          multiply_block<kHalf, 2>(p, a, b, sums + kHalf * p.sums_stride);
        }
      }
    }
  }
};

void pack(const TileOperand& x, TileSide side, std::int64_t rows, std::int64_t k, std::uint16_t* out, std::int64_t next) {
  TilePacker<PairProduct>::pack(x, side, rows, k, out, next);
}

}  // namespace

extern const TileKernel kAvx512Bf16Kernel;
const TileKernel kAvx512Bf16Kernel{
    .name = "AVX512-BF16", .begin = [] {}, .end = [] {}, .pack = &pack, .multiply = &PairProduct::multiply};

}  // namespace octet::kernels::cpu
