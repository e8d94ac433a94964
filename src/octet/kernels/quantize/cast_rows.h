// The inner loops of CPU quantisation, for BF16 sources. Each function gives exactly the bits of numerics/float8.h and
// numerics/bfloat16.h for each element. Magnitudes of BF16 are compared as integers of 15 bits; NaN is above infinity.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "octet/numerics/bfloat16.h"
#include "octet/numerics/float8.h"

namespace octet::kernels::cpu {

// The bits of the magnitude of a BF16.
using Magnitude = std::uint16_t;
constexpr float to_float(Magnitude bits) { return std::bit_cast<float>(std::uint32_t{bits} << 16); }

// y[i] = BF16(x[i]).
void round_to_bf16(const float* x, std::size_t n, BFloat16* y);

// The largest magnitude, or 0 if n is 0.
Magnitude amax(const BFloat16* x, std::size_t n);

// amax[t] = the largest magnitude of elements [t width, (t + 1) width) of x [n].
void amax_of_tiles(const BFloat16* x, std::size_t n, std::size_t width, float* amax);

// amax[c] = max(amax[c], magnitudes of column c of x [rows, cols]). Rows are `stride` elements apart.
void amax_of_columns(const BFloat16* x, std::ptrdiff_t stride, std::size_t rows, std::size_t cols, Magnitude* amax);

// codes[r][c] = encode(x[r][c] * scale) for x [rows, cols]. Returns the largest magnitude of x.
Magnitude cast(Fp8Format format, const BFloat16* x, std::ptrdiff_t stride, std::size_t rows, std::size_t cols, float scale,
               std::uint8_t* codes, std::ptrdiff_t codes_stride);

// Like cast(), if `scale` was computed from `amax`, which is at least the largest magnitude
// of x. Apart from infinities and NaN, no product then exceeds the format's largest value
// by more than rounding. If amax is finite, larger products need not be looked for.
void cast_fitting(Fp8Format format, const BFloat16* x, std::ptrdiff_t stride, std::size_t rows, std::size_t cols, float amax,
                  float scale, std::uint8_t* codes, std::ptrdiff_t codes_stride);

// codes[i] = encode(x[i] * scale[t]) with t = i / width. `amax` and `scale` of each tile are as for cast_fitting.
void cast_tiles(Fp8Format format, const BFloat16* x, std::size_t n, std::size_t width, const float* amax, const float* scale,
                std::uint8_t* codes);

// A scale for each column of a panel. Even and odd columns are separate, because a vector of BF16 pairs is processed that way.
class ColumnScales {
 public:
  static constexpr std::size_t kColumns = 256;

  // `amax` and `scale` as for cast_fitting.
  void set(std::size_t column, float amax, float scale);
  float get(std::size_t column) const { return (column % 2 ? odd_ : even_)[column / 2]; }
  bool all_finite() const { return all_finite_; }
  const float* even() const { return even_.data(); }
  const float* odd() const { return odd_.data(); }

 private:
  alignas(64) std::array<float, kColumns / 2> even_{};
  alignas(64) std::array<float, kColumns / 2> odd_{};
  bool all_finite_ = true;
};

// codes[r][c] = encode(x[r][c] * scale of column c) for x [rows, cols].
void cast_columns(Fp8Format format, const BFloat16* x, std::ptrdiff_t stride, std::size_t rows, std::size_t cols,
                  const ColumnScales& scales, std::uint8_t* codes, std::ptrdiff_t codes_stride);

// to[c][r] = from[r][c] for bytes [rows, cols].
void transpose_bytes(const std::uint8_t* from, std::ptrdiff_t from_stride, std::size_t rows, std::size_t cols, std::uint8_t* to,
                     std::ptrdiff_t to_stride);

}  // namespace octet::kernels::cpu
