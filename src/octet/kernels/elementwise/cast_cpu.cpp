#include "octet/kernels/elementwise/cast_cpu.h"

#include <algorithm>

#include "octet/base/math.h"
#include "octet/base/threads.h"
#include "octet/kernels/elementwise/convert.h"

namespace octet::kernels::cpu {
namespace {

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

}  // namespace

void cast(const Cast& op) {
  visit_castable(op.x.dtype, [&]<class From>() { visit_castable(op.y.dtype, [&]<class To>() { cast_rows<To, From>(op); }); });
}

}  // namespace octet::kernels::cpu
