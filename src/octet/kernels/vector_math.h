// Arithmetic on rows in plain loops that the compiler vectorises: exp, sums of it, and conversions. Every element goes through
// the same IEEE operations whether it is part of a vector or of the remainder, and sums use 16 fixed lanes. Results therefore do
// not depend on alignment or on how the caller divides rows; a sum depends only on the length of its row.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "octet/numerics/bfloat16.h"
#include "octet/numerics/float8.h"
#include "octet/tensor/dtype.h"

namespace octet::kernels {

namespace detail {

// ln 2 = ln2_high + ln2_low. ln2_high has so few bits that n * ln2_high is exact for every n that occurs.
template <class T>
struct ExpConstants;

template <>
struct ExpConstants<float> {
  using Bits = std::uint32_t;
  static constexpr int mantissa_bits = 23, bias = 127;
  static constexpr float rounder = 0x1.8p23f;  // adding it puts the nearest integer into the low mantissa bits
  static constexpr float ln2_high = 0x1.63p-1f, ln2_low = -0x1.bd0106p-13f;
  static constexpr float lowest = -104.0f, highest = 89.0f;  // beyond these, the two multiplications give 0 and infinity
  // exp(r) = 1 + r + r^2 p(r) for |r| <= ln 2 / 2 (Cephes expf), highest power first
  static constexpr float p[] = {1.9875691500e-4f, 1.3981999507e-3f, 8.3334519073e-3f,
                                4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f};
};

template <>
struct ExpConstants<double> {
  using Bits = std::uint64_t;
  static constexpr int mantissa_bits = 52, bias = 1023;
  static constexpr double rounder = 0x1.8p52;
  static constexpr double ln2_high = 0x1.62e42feep-1, ln2_low = 0x1.a39ef35793c76p-33;
  static constexpr double lowest = -746.0, highest = 710.0;
  // Taylor series up to r^13; the remainder is below 2^-57 of the result
  static constexpr double p[] = {1.0 / 6227020800, 1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320,
                                 1.0 / 5040,       1.0 / 720,       1.0 / 120,      1.0 / 24,      1.0 / 6,      0.5};
};

}  // namespace detail

// e^x within 2 ulp, for float or double and without branches. Results 0, infinity, subnormal and NaN are correct.
template <class T>
inline T exp_of(T x) {
  using C = detail::ExpConstants<T>;
  using Bits = typename C::Bits;
  T clamped = x < C::lowest ? C::lowest : x;
  clamped = clamped > C::highest ? C::highest : clamped;
  const T shifted = clamped * T(1.44269504088896340736) + C::rounder;
  const T n = shifted - C::rounder;
  const T r = (clamped - n * C::ln2_high) - n * C::ln2_low;
  T p = C::p[0];
  for (std::size_t i = 1; i < sizeof C::p / sizeof C::p[0]; ++i) p = p * r + C::p[i];
  const T mantissa = p * (r * r) + r + T(1);
  // 2^n is the product of two factors, because n can exceed the exponents of normal numbers at both ends. `count` is n + 2 bias.
  const Bits count = std::bit_cast<Bits>(shifted) - std::bit_cast<Bits>(C::rounder) + Bits{2 * C::bias};
  const Bits half = count >> 1;
  return mantissa * std::bit_cast<T>(half << C::mantissa_bits) * std::bit_cast<T>((count - half) << C::mantissa_bits);
}

template <class T>
inline T sigmoid(T x) {
  return T(1) / (T(1) + exp_of(-x));
}

// out[i] = e^in[i]. `out` may be `in`.
template <class T>
inline void exp_row(T* out, const T* in, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) out[i] = exp_of(in[i]);
}

inline constexpr std::int64_t kSumLanes = 16;

// The sum of term(i) for i in [0, n). Term i is added to lane i % 16; the lanes are added in a fixed tree.
template <class T, class Term>
inline T lane_sum(std::int64_t n, Term term) {
  T lanes[kSumLanes] = {};
  std::int64_t i = 0;
  for (; i + kSumLanes <= n; i += kSumLanes) {
    for (std::int64_t lane = 0; lane < kSumLanes; ++lane) lanes[lane] += term(i + lane);
  }
  if (i < n) {
    T tail[kSumLanes] = {};
    for (std::int64_t lane = 0; i + lane < n; ++lane) tail[lane] = term(i + lane);
    for (std::int64_t lane = 0; lane < kSumLanes; ++lane) lanes[lane] += tail[lane];
  }
  // Written as explicit halves so that the lanes stay in registers.
  T eight[8], four[4];
  for (std::size_t lane = 0; lane < 8; ++lane) eight[lane] = lanes[lane] + lanes[lane + 8];
  for (std::size_t lane = 0; lane < 4; ++lane) four[lane] = eight[lane] + eight[lane + 4];
  return (four[0] + four[2]) + (four[1] + four[3]);
}

template <class T>
inline T sum_row(const T* x, std::int64_t n) {
  return lane_sum<T>(n, [x](std::int64_t i) { return x[i]; });
}

template <class T>
inline T dot_row(const T* x, const T* y, std::int64_t n) {
  return lane_sum<T>(n, [x, y](std::int64_t i) { return x[i] * y[i]; });
}

// The largest element, but at least `floor`. NaN is ignored.
template <class T>
inline T max_row(const T* x, std::int64_t n, T floor = -std::numeric_limits<T>::infinity()) {
  T lanes[kSumLanes];
  for (T& lane : lanes) lane = floor;
  const auto larger = [](T a, T b) { return a > b ? a : b; };
  std::int64_t i = 0;
  for (; i + kSumLanes <= n; i += kSumLanes) {
    for (std::int64_t lane = 0; lane < kSumLanes; ++lane) lanes[lane] = larger(x[i + lane], lanes[lane]);
  }
  T eight[8], four[4];
  for (std::size_t lane = 0; lane < 8; ++lane) eight[lane] = larger(lanes[lane + 8], lanes[lane]);
  for (std::size_t lane = 0; lane < 4; ++lane) four[lane] = larger(eight[lane + 4], eight[lane]);
  T result = larger(larger(four[2], four[0]), larger(four[3], four[1]));
  for (; i < n; ++i) result = larger(x[i], result);
  return result;
}

// The sum of e^(x[i] - shift).
template <class T>
inline T sum_exp_row(const T* x, std::int64_t n, T shift) {
  return lane_sum<T>(n, [x, shift](std::int64_t i) { return exp_of(x[i] - shift); });
}

// Replaces x[i] by e^(x[i] - shift) and returns the sum of the results.
template <class T>
inline T exp_and_sum_row(T* x, std::int64_t n, T shift) {
  return lane_sum<T>(n, [x, shift](std::int64_t i) { return x[i] = exp_of(x[i] - shift); });
}

// The value that encode_fp8 gives x: the nearest one, ties to even, saturated. NaN stays NaN.
template <Fp8Format kFormat>
inline float round_to_fp8(float x) {
  constexpr bool kE4m3 = kFormat == Fp8Format::e4m3;
  constexpr float kLargest = kE4m3 ? 448.0f : 57344.0f, kSmallestNormal = kE4m3 ? 0x1p-6f : 0x1p-14f;
  constexpr float kUnit = kE4m3 ? 0x1.8p14f : 0x1.8p7f;  // its unit in the last place is that of the format's subnormal numbers
  constexpr int kDropped = kE4m3 ? 20 : 21;              // bits of the mantissa
  const float magnitude = std::abs(x), subnormal = (magnitude + kUnit) - kUnit;
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(magnitude), half = 1u << (kDropped - 1);
  const float normal = std::bit_cast<float>((bits + half - 1 + (bits >> kDropped & 1u)) & ~(2 * half - 1));
  const float rounded = magnitude < kSmallestNormal ? subnormal : normal;
  return x != x ? x : std::copysign(rounded > kLargest ? kLargest : rounded, x);
}

// Replaces x[i] by factor * x[i], rounded.
template <Fp8Format kFormat>
inline void round_row_to_fp8(float* x, std::int64_t n, float factor) {
  for (std::int64_t i = 0; i < n; ++i) x[i] = round_to_fp8<kFormat>(factor * x[i]);
}

// Converts a row of storage type T to the type of arithmetic and back. Rounding is to nearest even and keeps NaN, with the same
// bits as BFloat16's own conversions.
template <class T>
inline void load_row(Real<T>* out, const T* in, std::int64_t n) {
  if constexpr (sizeof(T) == sizeof(Real<T>)) {
    if (n > 0) std::memcpy(out, in, static_cast<std::size_t>(n) * sizeof(T));
  } else {
    for (std::int64_t i = 0; i < n; ++i) out[i] = static_cast<float>(in[i]);
  }
}

inline BFloat16 round_to_bf16(float value) {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (u + 0x7FFFu + ((u >> 16) & 1u)) >> 16;
  const std::uint32_t quiet = (u >> 16) | 0x0040u;
  return BFloat16::from_bits(static_cast<std::uint16_t>(value != value ? quiet : rounded));
}

template <class T>
inline void store_row(T* out, const Real<T>* in, std::int64_t n) {
  if constexpr (sizeof(T) == sizeof(Real<T>)) {
    if (n > 0) std::memcpy(out, in, static_cast<std::size_t>(n) * sizeof(T));
  } else {
    for (std::int64_t i = 0; i < n; ++i) out[i] = round_to_bf16(in[i]);
  }
}

}  // namespace octet::kernels
