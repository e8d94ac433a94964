// The loop over elements that the CPU's element-wise ops share.
#pragma once

#include <algorithm>
#include <cstdint>

#include "octet/base/math.h"
#include "octet/base/threads.h"
#include "octet/tensor/tensor.h"

namespace octet::kernels::cpu {

// Calls body(from, to, n) for runs of n contiguous elements of x and y, which have the same shape.
template <class To, class From, class Body>
void for_runs(const Tensor& x, const Tensor& y, Body body) {
  constexpr std::int64_t kSegment = 64 * 1024;
  const bool flat = x.contiguous() && y.contiguous();
  const std::int64_t rows = flat ? 1 : x.rows(), cols = flat ? x.elements() : x.cols();
  const std::int64_t per_row = ceil_div(cols, kSegment);
  const From* const from = x.as<From>();
  To* const to = y.as<To>();
  parallel_ranges(rows * per_row, std::max<std::int64_t>(1, kSegment / std::max<std::int64_t>(1, cols)),
                  [&](std::int64_t first, std::int64_t last) {
                    for (std::int64_t i = first; i < last; ++i) {
                      const std::int64_t row = i / per_row, begin = i % per_row * kSegment;
                      body(from + row * x.row_stride + begin, to + row * y.row_stride + begin, std::min(kSegment, cols - begin));
                    }
                  });
}

}  // namespace octet::kernels::cpu
