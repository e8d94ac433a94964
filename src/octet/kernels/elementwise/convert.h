// Conversion of a number between dtypes. It rounds once to nearest even, so all devices give the same bits.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include "octet/numerics/bfloat16.h"
#include "octet/tensor/dtype.h"

namespace octet::kernels {

// Converts F64 to F32 with rounding to odd: if the result is inexact,
// its last bit is 1. A second rounding, to 16 bits, is then correct.
constexpr float round_to_odd(double value) {
  const float nearest = static_cast<float>(value);
  const double back = nearest;
  if (back == value || value != value) return nearest;
  std::uint32_t bits = std::bit_cast<std::uint32_t>(nearest);
  if ((back > value) == (value > 0)) --bits;  // it was rounded away from zero, so take the neighbour towards zero
  return std::bit_cast<float>(bits | 1u);
}

// To and From are double, float, BFloat16 or Float16.
template <class To, class From>
constexpr To convert(From value) {
  if constexpr (std::is_same_v<To, From>) {
    return value;
  } else if constexpr (sizeof(To) == 2) {
    if constexpr (std::is_same_v<From, double>)
      return To(round_to_odd(value));
    else
      return To(static_cast<float>(value));
  } else if constexpr (sizeof(From) == 2) {
    return static_cast<float>(value);
  } else {
    return static_cast<To>(value);
  }
}

// y + x as specified for Add. Each type is double, float or BFloat16.
template <class To, class From>
constexpr To sum(To y, From x) {
  using Compute = std::conditional_t<std::is_same_v<To, double> || std::is_same_v<From, double>, double, float>;
  return convert<To>(convert<Compute>(y) + convert<Compute>(x));
}

// The type in which numbers of type T are summed.
template <class T>
using Sum = std::conditional_t<std::is_same_v<T, double>, double, float>;

// Calls f.template operator()<T>() with the C++ type T of a dtype that casts support.
template <class F>
void visit_castable(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f64:
      return f.template operator()<double>();
    case DType::f32:
      return f.template operator()<float>();
    case DType::bf16:
      return f.template operator()<BFloat16>();
    default:
      return f.template operator()<Float16>();
  }
}

}  // namespace octet::kernels
