// The CUDA backend of column_sums.h, and the two steps of any sum over rows: partial sums of runs of rows, then those in order.
#pragma once

#include <algorithm>

#include "octet/base/math.h"
#include "octet/kernels/column_sums/column_sums.h"

namespace octet::kernels::cuda {

// Rows of one partial sum: so many that three blocks to each of an H100's or H200's multiprocessors make one each.
constexpr std::int64_t rows_per_partial(std::int64_t rows) { return std::max<std::int64_t>(4, ceil_div(rows, 396)); }
constexpr std::int64_t column_partials(std::int64_t rows) {
  return std::max<std::int64_t>(1, ceil_div(rows, rows_per_partial(rows)));
}

// y [C] F32 or BF16 += the rows of `partials` [n, C] F32: 16 runs of them side by side, then the runs in order.
void add_partials(Queue& queue, const Tensor& partials, const Tensor& y);

// `partials` is [column_partials(T), C] F32.
void column_sums(Queue& queue, const ColumnSums& op, const Tensor& partials);

}  // namespace octet::kernels::cuda
