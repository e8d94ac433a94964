#include "support/emulated_tiles.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>

#include "octet/kernels/tiles/pack_tiles.h"
#include "octet/kernels/tiles/tile_product.h"
#include "octet/numerics/bfloat16.h"

namespace octet::testing {
namespace {

constexpr float kSmallestNormal = 0x1p-126f;

thread_local bool in_session = false;

float flushed(float x) { return std::abs(x) < kSmallestNormal ? std::copysign(0.0f, x) : x; }

// a b + c. Whether the result is below 2^-126 is decided after rounding to 24 bits, so the exact result counts where FP32's
// subnormals, which have fewer, round up to 2^-126.
float flushed_fma(float a, float b, float c) {
  const float sum = std::fma(a, b, c);
  if (std::abs(sum) == kSmallestNormal) {
    const double exact = std::fma(static_cast<double>(a), static_cast<double>(b), static_cast<double>(c));
    return std::abs(exact) < 0x1p-126 - 0x1p-151 ? std::copysign(0.0f, sum) : sum;
  }
  return flushed(sum);
}

// The same where no result can be below 2^-126.
constexpr auto kPlainFma = [](float a, float b, float c) { return std::fma(a, b, c); };

// 16 rows of 32 numbers from tiles of BF16, without subnormals.
struct Numbers {
  float at[16][32];
  int lowest;  // every number is a multiple of 2^lowest

  explicit Numbers(const std::uint8_t (&tile)[16][64]) {
    std::uint16_t bits[16][32];
    std::memcpy(bits, tile, sizeof bits);
    int exponent = 255;
    for (int i = 0; i < 16; ++i) {
      for (int j = 0; j < 32; ++j) {
        at[i][j] = flushed(static_cast<float>(BFloat16::from_bits(bits[i][j])));
        if (at[i][j] != 0) exponent = std::min(exponent, bits[i][j] >> 7 & 0xFF);
      }
    }
    lowest = exponent - 127 - 7;
  }
};

template <class Fma>
void add_product(float (&sums)[16][16], const Numbers& a, const Numbers& b, const Fma& fma) {
  for (int i = 0; i < 16; ++i) {
    float even[16] = {}, odd[16] = {};
    for (int pair = 0; pair < 16; ++pair) {
      for (int j = 0; j < 16; ++j) even[j] = fma(a.at[i][2 * pair], b.at[pair][2 * j], even[j]);
      for (int j = 0; j < 16; ++j) odd[j] = fma(a.at[i][2 * pair + 1], b.at[pair][2 * j + 1], odd[j]);
    }
    for (int j = 0; j < 16; ++j) sums[i][j] = flushed(flushed(sums[i][j]) + flushed(even[j] + odd[j]));
  }
}

void pack_emulated(const kernels::cpu::TileOperand& x, kernels::cpu::TileSide side, std::int64_t rows, std::int64_t k,
                   std::uint16_t* out, std::int64_t next) {
  kernels::cpu::TilePacker<EmulatedTiles>::pack(x, side, rows, k, out, next);
}
void multiply_emulated(const kernels::cpu::TileProduct& product) {
  kernels::cpu::TileMultiplier<EmulatedTiles>::multiply(product);
}

// Element `k` of a row of a panel of A, or of a column of a panel of B, whose tiles hold a pair of k of 16 columns in a vector.
float a_at(const kernels::cpu::TilePanel& a, std::int64_t row, std::int64_t k) {
  return flushed(
      static_cast<float>(BFloat16::from_bits(a.data[row / 16 * a.next + k / 32 * a.step + row % 16 * a.row + k % 32])));
}
float b_at(const kernels::cpu::TilePanel& b, std::int64_t column, std::int64_t k) {
  return flushed(static_cast<float>(
      BFloat16::from_bits(b.data[column / 16 * b.next + k / 32 * b.step + k % 32 / 2 * 32 + column % 16 * 2 + k % 2])));
}

void multiply_pairs(const kernels::cpu::TileProduct& p) {
  using kernels::cpu::whole_tiles;
  for (std::int64_t i = 0; i < whole_tiles(p.m, 16); ++i) {
    for (std::int64_t j = 0; j < whole_tiles(p.n, 16); ++j) {
      float& result = p.sums[i * p.sums_stride + j];
      float sum = p.accumulate ? flushed(result) : 0;
      for (std::int64_t pair = 0; pair < whole_tiles(p.k, 32); pair += 2) {
        for (const std::int64_t k : {pair + 1, pair}) sum = flushed_fma(a_at(p.a, i, k), b_at(p.b, j, k), sum);
      }
      result = sum;
    }
  }
}

}  // namespace

EmulatedTiles::EmulatedTiles() {
  if (!in_session) throw std::logic_error("tiles are used outside a session");
}
void EmulatedTiles::begin() {
  if (std::exchange(in_session, true)) throw std::logic_error("a session of tiles begins within another one");
}
void EmulatedTiles::end() { in_session = false; }

// A is [row][pair of k], B is [pair of k][column].
void EmulatedTiles::multiply(Tile& d, const Tile& a, const Tile& b) {
  const Numbers x(a), y(b);
  float sums[16][16];
  std::memcpy(sums, d, sizeof sums);
  // A sum of multiples of 2^-126 is 0 or at least 2^-126.
  if (x.lowest + y.lowest >= -126) {
    add_product(sums, x, y, kPlainFma);
  } else {
    add_product(sums, x, y, flushed_fma);
  }
  std::memcpy(d, sums, sizeof sums);
}

extern const kernels::cpu::TileKernel kEmulatedTiles{.name = "emulated",
                                                      .begin = &EmulatedTiles::begin,
                                                      .end = &EmulatedTiles::end,
                                                      .pack = &pack_emulated,
                                                      .multiply = &multiply_emulated};
extern const kernels::cpu::TileKernel kEmulatedPairs{.name = "emulated pairs",
                                                     .begin = &EmulatedTiles::begin,
                                                     .end = &EmulatedTiles::end,
                                                     .pack = &pack_emulated,
                                                     .multiply = &multiply_pairs};

}  // namespace octet::testing
