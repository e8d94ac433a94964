#include "octet/kernels/column_sums/column_sums_cpu.h"

#include <type_traits>

#include "octet/base/threads.h"

namespace octet::kernels::cpu {
namespace {

constexpr std::int64_t kColumnsPerTask = 512;

// y[begin, end) += the sum of the partial sums.
template <class G, class R>
void add_columns(const Tensor& partials, G* y, std::int64_t begin, std::int64_t end) {
  using Wide = std::common_type_t<R, Real<G>>;
  R sums[kColumnsPerTask] = {};
  for (std::int64_t part = 0; part < partials.rows(); ++part) {
    const R* row = partials.as<R>() + part * partials.row_stride + begin;
    for (std::int64_t i = 0; i < end - begin; ++i) sums[i] += row[i];
  }
  for (std::int64_t i = 0; i < end - begin; ++i) {
    const Wide sum = static_cast<Wide>(static_cast<Real<G>>(y[begin + i])) + static_cast<Wide>(sums[i]);
    y[begin + i] = static_cast<G>(static_cast<Real<G>>(sum));
  }
}

}  // namespace

void add_partials(const Tensor& partials, const Tensor& y) {
  if (!y) return;
  visit_float(y.dtype, [&]<class G>() {
    parallel_ranges(y.elements(), kColumnsPerTask, [&](std::int64_t begin, std::int64_t end) {
      if (partials.dtype == DType::f64) {
        add_columns<G, double>(partials, y.as<G>(), begin, end);
      } else {
        add_columns<G, float>(partials, y.as<G>(), begin, end);
      }
    });
  });
}

void column_sums(const ColumnSums& op, const Tensor& partials) {
  visit_float(op.x.dtype, [&]<class T>() {
    using R = Real<T>;
    const std::int64_t cols = op.x.cols(), step = rows_per_partial(op.x.rows());
    parallel_ranges(op.x.rows(), step, [&](std::int64_t begin, std::int64_t end) {
      R* __restrict partial = partials.as<R>() + begin / step * partials.row_stride;
      for (std::int64_t i = 0; i < cols; ++i) partial[i] = 0;
      for (std::int64_t row = begin; row < end; ++row) {
        const T* __restrict x = op.x.as<T>() + row * op.x.row_stride;
        for (std::int64_t i = 0; i < cols; ++i) partial[i] += static_cast<R>(x[i]);
      }
    });
  });
  add_partials(partials, op.y);
}

}  // namespace octet::kernels::cpu
