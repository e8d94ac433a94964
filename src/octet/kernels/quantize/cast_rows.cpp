#include "octet/kernels/quantize/cast_rows.h"

#include <hwy/highway.h>

#include <algorithm>
#include <cstring>

#include "octet/numerics/scale.h"

namespace octet::kernels::cpu {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// A vector of BF16 as two vectors of FP32: the upper halves of its
// 32-bit lanes are the odd elements, the lower halves the even ones.
using D16 = hn::ScalableTag<std::uint16_t>;
using D32 = hn::Repartition<std::uint32_t, D16>;
using DF = hn::RebindToFloat<D32>;
using D8 = hn::Rebind<std::uint8_t, D16>;
using V16 = hn::Vec<D16>;
using V32 = hn::Vec<D32>;
using VF = hn::Vec<DF>;

constexpr std::size_t kLanes = hn::MaxLanes(D16());  // static targets have vectors of fixed size

const std::uint16_t* bits_of(const BFloat16* x) { return reinterpret_cast<const std::uint16_t*>(x); }

// Runs body(x, codes) on the remainder of a row, copied into memory where whole vectors may be read and written.
template <class Body>
void with_padded_tail(const BFloat16* x, std::size_t n, std::uint8_t* codes, Body body) {
  alignas(64) std::uint16_t in[kLanes] = {};
  alignas(64) std::uint8_t out[kLanes];
  std::memcpy(in, bits_of(x), n * sizeof(BFloat16));
  body(in, out);
  std::memcpy(codes, out, n);
}

// The range of a cast's products. Neither allows NaN.
enum class Products {
  any,      // may exceed the format's largest value, including infinity
  fitting,  // at most the largest value plus a rounding error
};

// Computes the code of a product that is not negative and exceeds the largest
// value by at most a rounding error. The code is the low byte of a lane.
//
// The product c is added to 2^(e + 23 - M). 2^e is c's binade (for subnormals the smallest normal one) and M the number of
// mantissa bits of the format. FP32's own rounding to nearest even then leaves the number of units 2^(e - M), at most 2^(M+1),
// in the low bits of the sum. The code is this number plus 2^M for each binade above the smallest. The exponent field of the
// sum, shifted down to bit M, counts binades from kOffset on. An even number of units is added first so that kOffset becomes a
// multiple of 256; being even, it does not change how ties round. The product of binade and `raise` is exact, so it does not
// matter whether the target fuses it with the addition.
template <Fp8Format kFormat>
struct Encoder {
  static constexpr Fp8Layout kLayout = fp8_layout(kFormat);
  static constexpr int kDropped = 23 - kLayout.mantissa_bits;
  static constexpr std::uint32_t kOffset = static_cast<std::uint32_t>(kDropped + 128 - kLayout.bias) << kLayout.mantissa_bits;
  static constexpr std::uint32_t kUnits = (0u - kOffset) % 256u;
  static_assert(kUnits % 2 == 0);
  static constexpr float kRaise = static_cast<float>((1u << kDropped) + (kUnits >> kLayout.mantissa_bits));
  static_assert(kUnits % (1u << kLayout.mantissa_bits) == 0);

  D32 d32{};
  DF df{};
  VF smallest = hn::BitCast(df, hn::Set(d32, static_cast<std::uint32_t>(128 - kLayout.bias) << 23));
  VF exponent = hn::BitCast(df, hn::Set(d32, 0x7F800000u));
  VF raise = hn::Set(df, kRaise);

  V32 operator()(VF c) const {
    const VF binade = hn::And(hn::Max(c, smallest), exponent);
    const V32 sum = hn::BitCast(d32, hn::MulAdd(binade, raise, c));
    return hn::Add(sum, hn::ShiftRight<kDropped>(sum));
  }
};

template <Fp8Format kFormat, Products kProducts>
struct Caster {
  D16 d16{};
  D32 d32{};
  DF df{};
  D8 d8{};
  Encoder<kFormat> encode{};
  V16 magnitude_bits = hn::Set(d16, 0x7FFF);
  V16 sign_bit = hn::Set(d16, 0x80);
  V16 code_bits = hn::Set(d16, 0x7F);
  V32 odd_bits = hn::Set(d32, 0xFFFF0000u);
  V16 largest = hn::Set(d16, 0x7F80);  // Products::any: magnitudes from this one on get the largest code

  // Casts kLanes elements with finite, positive scales and returns their magnitudes.
  V16 operator()(const std::uint16_t* x, VF even_scale, VF odd_scale, std::uint8_t* codes) const {
    const V16 bits = hn::LoadU(d16, x);
    const V16 magnitude = hn::And(bits, magnitude_bits);
    const V32 pairs = hn::BitCast(d32, kProducts == Products::any ? hn::Min(magnitude, largest) : magnitude);
    const V32 even = encode(hn::Mul(hn::BitCast(df, hn::ShiftLeft<16>(pairs)), even_scale));
    const V32 odd = encode(hn::Mul(hn::BitCast(df, hn::And(pairs, odd_bits)), odd_scale));
    // Only the low byte of each 16 bits is used.
    const V16 code = hn::OddEven(hn::BitCast(d16, hn::ShiftLeft<16>(odd)), hn::BitCast(d16, even));
    const V16 sign = hn::And(hn::ShiftRight<8>(bits), sign_bit);
    hn::StoreU(hn::TruncateTo(d8, hn::OrAnd(sign, code, code_bits)), d8, codes);
    return magnitude;
  }
};

// The largest lane: first one half against the other, then the four pairs of a 128-bit block.
template <class D, class V>
Magnitude largest_lane(D d, V v) {
  if constexpr (hn::MaxLanes(D()) > 8) {
    const hn::Half<D> half;
    return largest_lane(half, hn::Max(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  } else {
    const hn::Repartition<std::uint32_t, D> pairs;
    v = hn::Max(v, hn::BitCast(d, hn::Shuffle1032(hn::BitCast(pairs, v))));
    v = hn::Max(v, hn::BitCast(d, hn::Shuffle2301(hn::BitCast(pairs, v))));
    v = hn::Max(v, hn::BitCast(d, hn::ShiftRight<16>(hn::BitCast(pairs, v))));
    return hn::GetLane(v);
  }
}

// The smallest magnitude whose product with `scale` is at least the format's largest value; infinity's if there is none.
Magnitude saturating_magnitude(Fp8Format format, float scale) {
  const float quotient = std::min(fp8_max(format) / scale, kBf16Max);
  auto magnitude = static_cast<std::uint32_t>(std::bit_cast<std::uint32_t>(quotient) >> 16);
  if (magnitude > 0) --magnitude;  // the quotient may have been rounded up
  while (magnitude < 0x7F80 && to_float(static_cast<Magnitude>(magnitude)) * scale < fp8_max(format)) ++magnitude;
  return static_cast<Magnitude>(magnitude);
}

template <class AnyCaster>
Magnitude cast_block(const AnyCaster& caster, const BFloat16* x, std::ptrdiff_t stride, std::size_t rows, std::size_t cols,
                     float scale, std::uint8_t* codes, std::ptrdiff_t codes_stride) {
  const VF s = hn::Set(DF(), scale);
  V16 largest = hn::Zero(D16());
  for (std::size_t r = 0; r < rows; ++r, x += stride, codes += codes_stride) {
    std::size_t c = 0;
    for (; c + kLanes <= cols; c += kLanes) largest = hn::Max(largest, caster(bits_of(x + c), s, s, codes + c));
    if (c < cols) {
      with_padded_tail(x + c, cols - c, codes + c,
                       [&](const std::uint16_t* in, std::uint8_t* out) { largest = hn::Max(largest, caster(in, s, s, out)); });
    }
  }
  return largest_lane(D16(), largest);
}

// Casts without vectors, for any scale.
Magnitude cast_one_by_one(Fp8Format format, const BFloat16* x, std::ptrdiff_t stride, std::size_t rows, std::size_t cols,
                          float scale, std::uint8_t* codes, std::ptrdiff_t codes_stride) {
  Magnitude largest = 0;
  for (std::size_t r = 0; r < rows; ++r, x += stride, codes += codes_stride) {
    for (std::size_t c = 0; c < cols; ++c) {
      codes[c] = encode_fp8(format, static_cast<float>(x[c]) * scale);
      largest = std::max(largest, static_cast<Magnitude>(x[c].bits & 0x7FFFu));
    }
  }
  return largest;
}

template <Fp8Format kFormat>
void cast_tiles_with(const BFloat16* x, std::size_t n, std::size_t width, const float* amax, const float* scale,
                     std::uint8_t* codes) {
  const Caster<kFormat, Products::fitting> caster;
  for (std::size_t begin = 0; begin < n; begin += width, ++amax, ++scale) {
    const std::size_t end = std::min(begin + width, n);
    if (!is_finite(*amax)) {
      cast_one_by_one(kFormat, x + begin, 0, 1, end - begin, *scale, codes + begin, 0);
      continue;
    }
    const VF s = hn::Set(DF(), *scale);
    std::size_t i = begin;
    for (; i + kLanes <= end; i += kLanes) caster(bits_of(x + i), s, s, codes + i);
    if (i < end) {
      with_padded_tail(x + i, end - i, codes + i, [&](const std::uint16_t* in, std::uint8_t* out) { caster(in, s, s, out); });
    }
  }
}

template <Fp8Format kFormat>
void cast_columns_with(const BFloat16* x, std::ptrdiff_t stride, std::size_t rows, std::size_t cols, const ColumnScales& scales,
                       std::uint8_t* codes, std::ptrdiff_t codes_stride) {
  const Caster<kFormat, Products::fitting> caster;
  const DF df;
  for (std::size_t r = 0; r < rows; ++r, x += stride, codes += codes_stride) {
    std::size_t c = 0;
    for (; c + kLanes <= cols; c += kLanes) {
      caster(bits_of(x + c), hn::LoadU(df, scales.even() + c / 2), hn::LoadU(df, scales.odd() + c / 2), codes + c);
    }
    if (c < cols) {
      with_padded_tail(x + c, cols - c, codes + c, [&](const std::uint16_t* in, std::uint8_t* out) {
        caster(in, hn::LoadU(df, scales.even() + c / 2), hn::LoadU(df, scales.odd() + c / 2), out);
      });
    }
  }
}

void merge_magnitudes(const BFloat16* x, std::size_t begin, std::size_t end, Magnitude* amaxes) {
  for (std::size_t c = begin; c < end; ++c) amaxes[c] = std::max(amaxes[c], static_cast<Magnitude>(x[c].bits & 0x7FFFu));
}

// Transposes 16 rows of 16 bytes. Four rounds that interleave row i with row i + 8 give to[c][r] = from[r][c].
void transpose_16x16(const std::uint8_t* from, std::ptrdiff_t from_stride, std::uint8_t* to, std::ptrdiff_t to_stride) {
  const hn::FixedTag<std::uint8_t, 16> d;
  using V = hn::Vec<decltype(d)>;
  const auto round = [&d](const V* in, V* out) {
    for (int i = 0; i < 8; ++i) {
      out[2 * i] = hn::InterleaveLower(d, in[i], in[i + 8]);
      out[2 * i + 1] = hn::InterleaveUpper(d, in[i], in[i + 8]);
    }
  };
  V a[16], b[16];
  for (int i = 0; i < 16; ++i) a[i] = hn::LoadU(d, from + i * from_stride);
  round(a, b);
  round(b, a);
  round(a, b);
  round(b, a);
  for (int i = 0; i < 16; ++i) hn::StoreU(a[i], d, to + i * to_stride);
}

constexpr std::size_t kLine = 64;        // bytes of a cache line
constexpr std::size_t kMostLines = 256;  // that are transposed before they are written

// Transposes 64 rows of `cols` bytes, a multiple of 16 up to kMostLines, to columns of a cache line each. The lines are far
// apart, so writing them misses the caches. They are written together at the end: the processor finishes stores in order, and
// reading back what was transposed in between would wait for each line. A line is written as a whole, because lines that are a
// power of two apart evict each other from the first-level cache.
void transpose_lines(const std::uint8_t* from, std::ptrdiff_t from_stride, std::size_t cols, std::uint8_t* to,
                     std::ptrdiff_t to_stride) {
  alignas(kLine) std::uint8_t lines[kMostLines * kLine];
  for (std::size_t c = 0; c < cols; c += 16) {
    for (std::ptrdiff_t r = 0; r < std::ptrdiff_t{kLine}; r += 16)
      transpose_16x16(from + r * from_stride + c, from_stride, lines + c * kLine + r, kLine);
  }
  for (std::size_t c = 0; c < cols; ++c) std::memcpy(to + static_cast<std::ptrdiff_t>(c) * to_stride, lines + c * kLine, kLine);
}

}  // namespace

void round_to_bf16(const float* x, std::size_t n, BFloat16* y) {
  for (std::size_t i = 0; i < n; ++i) y[i] = BFloat16(x[i]);
}

Magnitude amax(const BFloat16* x, std::size_t n) {
  const D16 d;
  const V16 magnitude_bits = hn::Set(d, 0x7FFF);
  // Four independent chains hide the latency of max.
  V16 m0 = hn::Zero(d), m1 = m0, m2 = m0, m3 = m0;
  std::size_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    m0 = hn::Max(m0, hn::And(hn::LoadU(d, bits_of(x + i)), magnitude_bits));
    m1 = hn::Max(m1, hn::And(hn::LoadU(d, bits_of(x + i + kLanes)), magnitude_bits));
    m2 = hn::Max(m2, hn::And(hn::LoadU(d, bits_of(x + i + 2 * kLanes)), magnitude_bits));
    m3 = hn::Max(m3, hn::And(hn::LoadU(d, bits_of(x + i + 3 * kLanes)), magnitude_bits));
  }
  for (; i + kLanes <= n; i += kLanes) m0 = hn::Max(m0, hn::And(hn::LoadU(d, bits_of(x + i)), magnitude_bits));
  Magnitude largest = largest_lane(D16(), hn::Max(hn::Max(m0, m1), hn::Max(m2, m3)));
  for (; i < n; ++i) largest = std::max(largest, static_cast<Magnitude>(x[i].bits & 0x7FFFu));
  return largest;
}

void amax_of_tiles(const BFloat16* x, std::size_t n, std::size_t width, float* amaxes) {
  for (std::size_t begin = 0; begin < n; begin += width) *amaxes++ = to_float(amax(x + begin, std::min(width, n - begin)));
}

void amax_of_columns(const BFloat16* x, std::ptrdiff_t stride, std::size_t rows, std::size_t cols, Magnitude* amaxes) {
  const D16 d;
  const V16 magnitude_bits = hn::Set(d, 0x7FFF);
  const std::size_t whole = cols / kLanes * kLanes;
  // Four rows at a time, so that the running maxima are read and written once per four rows.
  for (; rows >= 4; rows -= 4, x += 4 * stride) {
    for (std::size_t c = 0; c < whole; c += kLanes) {
      const std::uint16_t* column = bits_of(x + c);
      const V16 m01 =
          hn::Max(hn::And(hn::LoadU(d, column), magnitude_bits), hn::And(hn::LoadU(d, column + stride), magnitude_bits));
      const V16 m23 = hn::Max(hn::And(hn::LoadU(d, column + 2 * stride), magnitude_bits),
                              hn::And(hn::LoadU(d, column + 3 * stride), magnitude_bits));
      hn::StoreU(hn::Max(hn::LoadU(d, amaxes + c), hn::Max(m01, m23)), d, amaxes + c);
    }
    for (std::size_t r = 0; r < 4; ++r) merge_magnitudes(x + static_cast<std::ptrdiff_t>(r) * stride, whole, cols, amaxes);
  }
  for (; rows > 0; --rows, x += stride) merge_magnitudes(x, 0, cols, amaxes);
}

Magnitude cast(Fp8Format format, const BFloat16* x, std::ptrdiff_t stride, std::size_t rows, std::size_t cols, float scale,
               std::uint8_t* codes, std::ptrdiff_t codes_stride) {
  const bool usual = is_finite(scale) && scale > 0.0f;
  const Magnitude largest = usual ? saturating_magnitude(format, scale) : Magnitude{0};
  if (!usual || largest == 0x7F80) return cast_one_by_one(format, x, stride, rows, cols, scale, codes, codes_stride);
  const auto with = [&](auto caster) {
    caster.largest = hn::Set(D16(), largest);
    return cast_block(caster, x, stride, rows, cols, scale, codes, codes_stride);
  };
  const Magnitude amax =
      format == Fp8Format::e4m3 ? with(Caster<Fp8Format::e4m3, Products::any>()) : with(Caster<Fp8Format::e5m2, Products::any>());
  // NaN is rare, so a block that contains one is simply cast again.
  return amax > 0x7F80 ? cast_one_by_one(format, x, stride, rows, cols, scale, codes, codes_stride) : amax;
}

void cast_fitting(Fp8Format format, const BFloat16* x, std::ptrdiff_t stride, std::size_t rows, std::size_t cols, float amax,
                  float scale, std::uint8_t* codes, std::ptrdiff_t codes_stride) {
  if (!is_finite(amax)) {
    cast(format, x, stride, rows, cols, scale, codes, codes_stride);
  } else if (format == Fp8Format::e4m3) {
    cast_block(Caster<Fp8Format::e4m3, Products::fitting>(), x, stride, rows, cols, scale, codes, codes_stride);
  } else {
    cast_block(Caster<Fp8Format::e5m2, Products::fitting>(), x, stride, rows, cols, scale, codes, codes_stride);
  }
}

void cast_tiles(Fp8Format format, const BFloat16* x, std::size_t n, std::size_t width, const float* amax, const float* scale,
                std::uint8_t* codes) {
  return format == Fp8Format::e4m3 ? cast_tiles_with<Fp8Format::e4m3>(x, n, width, amax, scale, codes)
                                   : cast_tiles_with<Fp8Format::e5m2>(x, n, width, amax, scale, codes);
}

void ColumnScales::set(std::size_t column, float amax, float scale) {
  (column % 2 ? odd_ : even_)[column / 2] = scale;
  all_finite_ = all_finite_ && is_finite(amax);
}

void cast_columns(Fp8Format format, const BFloat16* x, std::ptrdiff_t stride, std::size_t rows, std::size_t cols,
                  const ColumnScales& scales, std::uint8_t* codes, std::ptrdiff_t codes_stride) {
  if (!scales.all_finite()) {
    for (std::size_t c = 0; c < cols; ++c)
      cast_one_by_one(format, x + c, stride, rows, 1, scales.get(c), codes + c, codes_stride);
  } else if (format == Fp8Format::e4m3) {
    cast_columns_with<Fp8Format::e4m3>(x, stride, rows, cols, scales, codes, codes_stride);
  } else {
    cast_columns_with<Fp8Format::e5m2>(x, stride, rows, cols, scales, codes, codes_stride);
  }
}

void transpose_bytes(const std::uint8_t* from, std::ptrdiff_t from_stride, std::size_t rows, std::size_t cols, std::uint8_t* to,
                     std::ptrdiff_t to_stride) {
  const std::size_t whole_rows = rows / 16 * 16, whole_cols = cols / 16 * 16;
  const auto source = [&](std::size_t r, std::size_t c) {
    return from + static_cast<std::ptrdiff_t>(r) * from_stride + static_cast<std::ptrdiff_t>(c);
  };
  const auto target = [&](std::size_t r, std::size_t c) {
    return to + static_cast<std::ptrdiff_t>(c) * to_stride + static_cast<std::ptrdiff_t>(r);
  };
  const std::size_t lines = rows / kLine * kLine;
  for (std::size_t c = 0; c < whole_cols; c += kMostLines) {
    const std::size_t width = std::min(kMostLines, whole_cols - c);
    for (std::size_t r = 0; r < lines; r += kLine) transpose_lines(source(r, c), from_stride, width, target(r, c), to_stride);
  }
  for (std::size_t r = lines; r < whole_rows; r += 16) {
    for (std::size_t c = 0; c < whole_cols; c += 16) transpose_16x16(source(r, c), from_stride, target(r, c), to_stride);
  }
  for (std::size_t c = 0; c < cols; ++c) {
    for (std::size_t r = c < whole_cols ? whole_rows : 0; r < rows; ++r) *target(r, c) = *source(r, c);
  }
}

}  // namespace octet::kernels::cpu
