// The types of a tensor's elements: their sizes, their names in files, and the C++ types that stand for them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

#include "octet/base/require.h"
#include "octet/numerics/bfloat16.h"
#include "octet/numerics/float8.h"

namespace octet {

enum class DType : std::uint8_t { f64, f32, bf16, f16, f8_e4m3, f8_e5m2, e8m0, i64, i32, u8 };

constexpr std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::f64:
    case DType::i64: return 8;
    case DType::f32:
    case DType::i32: return 4;
    case DType::bf16:
    case DType::f16: return 2;
    default: return 1;
  }
}

// The names that the safetensors format uses ("F32", "BF16", "F8_E4M3", ...). E8M0 is stored as "U8".
constexpr std::string_view name_of(DType dtype) {
  constexpr std::array<std::string_view, 10> kNames = {"F64",     "F32", "BF16", "F16", "F8_E4M3",
                                                       "F8_E5M2", "U8",  "I64",  "I32", "U8"};
  return kNames[static_cast<std::size_t>(dtype)];
}

constexpr DType dtype_of(Fp8Format format) { return format == Fp8Format::e4m3 ? DType::f8_e4m3 : DType::f8_e5m2; }

template <class T>
inline constexpr DType kDTypeOf = DType::u8;
template <> inline constexpr DType kDTypeOf<double> = DType::f64;
template <> inline constexpr DType kDTypeOf<float> = DType::f32;
template <> inline constexpr DType kDTypeOf<BFloat16> = DType::bf16;
template <> inline constexpr DType kDTypeOf<Float16> = DType::f16;
template <> inline constexpr DType kDTypeOf<std::int32_t> = DType::i32;
template <> inline constexpr DType kDTypeOf<std::int64_t> = DType::i64;

// Calls f.template operator()<T>() with the C++ type T of a dtype in which
// kernels compute: double, float or BFloat16. Any other dtype is an error.
template <class F>
decltype(auto) visit_float(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f64: return std::forward<F>(f).template operator()<double>();
    case DType::f32: return std::forward<F>(f).template operator()<float>();
    case DType::bf16: return std::forward<F>(f).template operator()<BFloat16>();
    default: break;
  }
  fail(ExitCode::internal, "no kernel computes with ", name_of(dtype));
}

// The type in which arithmetic on T is done: double for double, float for everything else.
template <class T> struct ComputeType { using type = float; };
template <> struct ComputeType<double> { using type = double; };
template <class T> using Real = typename ComputeType<T>::type;

}  // namespace octet
