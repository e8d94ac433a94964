// The CPU backend of column_sums.h, and the two steps of every sum
// over rows: partial sums of groups of rows, then the sum of those.
#pragma once

#include "octet/base/math.h"
#include "octet/kernels/column_sums/column_sums.h"

namespace octet::kernels::cpu {

// Rows per partial sum. There are at most 64 partial sums, whatever T is.
constexpr std::int64_t rows_per_partial(std::int64_t rows) { return rows <= 1024 ? 16 : round_up(ceil_div(rows, 64), 16); }
constexpr std::int64_t column_partials(std::int64_t rows) { return ceil_div(rows, rows_per_partial(rows)); }

// y [C] (optional) += the rows of `partials` [n, C] F32 or F64, in their order.
void add_partials(const Tensor& partials, const Tensor& y);

// `partials` is [column_partials(T), C] F32 (F64 for F64).
void column_sums(const ColumnSums& op, const Tensor& partials);

}  // namespace octet::kernels::cpu
