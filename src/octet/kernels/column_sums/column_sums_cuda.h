// The CUDA backend of column_sums.h, and the two steps of every sum
// over rows: partial sums of groups of rows, then the sum of those.
#pragma once

#include <algorithm>

#include "octet/base/math.h"
#include "octet/kernels/column_sums/column_sums.h"

namespace octet::kernels::cuda {

// Rows per partial sum, so that there are about as many partial sums as three blocks on each multiprocessor of an H100 or H200.
constexpr std::int64_t rows_per_partial(std::int64_t rows) { return std::max<std::int64_t>(4, ceil_div(rows, 396)); }
constexpr std::int64_t column_partials(std::int64_t rows) {
  return std::max<std::int64_t>(1, ceil_div(rows, rows_per_partial(rows)));
}

// y [C] F32 or BF16 += the rows of `partials` [n, C] F32. Sixteen groups of rows are summed in parallel, then added in order.
void add_partials(Stream& stream, const Tensor& partials, const Tensor& y);

// `partials` is [column_partials(T), C] F32.
void column_sums(Stream& stream, const ColumnSums& op, const Tensor& partials);

}  // namespace octet::kernels::cuda
