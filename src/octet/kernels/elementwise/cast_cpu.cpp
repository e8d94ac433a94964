#include "octet/kernels/elementwise/cast_cpu.h"

#include <algorithm>
#include <bit>
#include <type_traits>

#include "octet/base/math.h"
#include "octet/base/threads.h"

namespace octet::kernels::cpu {
namespace {

// FP64 to FP32 rounded to odd: an inexact result has its last bit set, so that a second rounding to 16 bits is right.
float round_to_odd(double value) {
  const float nearest = static_cast<float>(value);
  const double back = nearest;
  if (back == value || value != value) return nearest;
  std::uint32_t bits = std::bit_cast<std::uint32_t>(nearest);
  if ((back > value) == (value > 0)) --bits;  // rounded away from zero: one step back
  return std::bit_cast<float>(bits | 1u);
}

template <class To, class From>
To convert(From value) {
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

template <class To, class From>
void cast_rows(const Cast& op) {
  constexpr std::int64_t kSegment = 64 * 1024;
  const bool flat = op.x.contiguous() && op.y.contiguous();
  const std::int64_t rows = flat ? 1 : op.x.rows(), cols = flat ? op.x.elements() : op.x.cols();
  const std::int64_t per_row = ceil_div(cols, kSegment);
  const From* const x = op.x.as<From>();
  To* const y = op.y.as<To>();
  parallel_ranges(rows * per_row, std::max<std::int64_t>(1, kSegment / std::max<std::int64_t>(1, cols)),
                  [&](std::int64_t first, std::int64_t last) {
                    for (std::int64_t i = first; i < last; ++i) {
                      const std::int64_t row = i / per_row, begin = i % per_row * kSegment,
                                         end = std::min(cols, begin + kSegment);
                      const From* const from = x + row * op.x.row_stride;
                      To* const to = y + row * op.y.row_stride;
                      for (std::int64_t c = begin; c < end; ++c) to[c] = convert<To>(from[c]);
                    }
                  });
}

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

}  // namespace

void cast(const Cast& op) {
  visit_castable(op.x.dtype, [&]<class From>() { visit_castable(op.y.dtype, [&]<class To>() { cast_rows<To, From>(op); }); });
}

}  // namespace octet::kernels::cpu
