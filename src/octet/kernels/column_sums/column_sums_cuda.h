// The CUDA backend of column_sums.h, and the two steps of every sum
// over rows: partial sums of groups of rows, then the sum of those.
#pragma once

#include <algorithm>

#include "octet/base/math.h"
#include "octet/kernels/column_sums/column_sums.h"

namespace octet::kernels::cuda {

// The most groups of rows that have a partial sum. This number fixes the order of the sum, so it is the same on every GPU and
// must not become a question to the device: otherwise bits would depend on the GPU. It is three blocks for each of the 132
// multiprocessors of an H100 or H200. Each group has its own block, so any other number of multiprocessors runs the same blocks
// in more or fewer waves.
constexpr std::int64_t kMostPartials = 3 * 132;
constexpr std::int64_t rows_per_partial(std::int64_t rows) { return std::max<std::int64_t>(4, ceil_div(rows, kMostPartials)); }
// The number of groups, each of rows_per_partial(rows) rows; the last one may be shorter.
constexpr std::int64_t column_partials(std::int64_t rows) {
  return std::max<std::int64_t>(1, ceil_div(rows, rows_per_partial(rows)));
}

// y [C] F32 or BF16 (optional) += the rows of `partials` [n, C] F32. Sixteen groups of rows are summed in parallel, then added in
// order.
void add_partials(Stream& stream, const Tensor& partials, const Tensor& y);

// `partials` is [column_partials(T), C] F32.
void column_sums(Stream& stream, const ColumnSums& op, const Tensor& partials);

}  // namespace octet::kernels::cuda
