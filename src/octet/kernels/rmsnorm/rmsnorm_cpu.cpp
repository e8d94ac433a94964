#include "octet/kernels/rmsnorm/rmsnorm_cpu.h"

#include <cmath>

#include "octet/base/threads.h"
#include "octet/kernels/column_sums/column_sums_cpu.h"
#include "octet/kernels/norm_rows.h"
#include "octet/kernels/vector_math.h"

namespace octet::kernels::cpu {
namespace {

constexpr std::int64_t kRmsNormRowsPerTask = 16;

// Accumulates gx for rows [begin, end), and writes their partial sum of gweight to `partial`.
template <class T>
void backward_rows(const RmsNormBackward& op, std::int64_t begin, std::int64_t end, Real<T>* __restrict partial) {
  using R = Real<T>;
  const std::int64_t d = op.x.cols();
  const T* __restrict weight = op.weight.as<T>();
  for (std::int64_t i = 0; i < d; ++i) partial[i] = 0;
  for (std::int64_t row = begin; row < end; ++row) {
    const T* __restrict gy = row_of<T>(op.gy, row);
    const T* __restrict x = row_of<T>(op.x, row);
    T* __restrict gx = row_of<T>(op.gx, row);
    const R rstd = op.rstd.as<R>()[row];
    const R dot = lane_sum<R>(
        d, [=](std::int64_t i) { return static_cast<R>(gy[i]) * static_cast<R>(weight[i]) * (static_cast<R>(x[i]) * rstd); });
    const R mean = dot / static_cast<R>(d);
    for (std::int64_t i = 0; i < d; ++i) {
      const R g = static_cast<R>(gy[i]);
      const R n = static_cast<R>(x[i]) * rstd;
      gx[i] = static_cast<T>(static_cast<R>(gx[i]) + rstd * (g * static_cast<R>(weight[i]) - n * mean));
      partial[i] += g * n;
    }
  }
}

}  // namespace

void rmsnorm_forward(const RmsNormForward& op) {
  visit_float(op.x.dtype, [&]<class T>() {
    using R = Real<T>;
    const std::int64_t d = op.x.cols();
    const R epsilon = static_cast<R>(op.epsilon);
    const T* __restrict weight = op.weight.as<T>();
    parallel_ranges(op.x.rows(), kRmsNormRowsPerTask, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        const T* __restrict x = row_of<T>(op.x, row);
        T* __restrict y = row_of<T>(op.y, row);
        const R squares = lane_sum<R>(d, [x](std::int64_t i) { return static_cast<R>(x[i]) * static_cast<R>(x[i]); });
        const R rstd = R{1} / std::sqrt(squares / static_cast<R>(d) + epsilon);
        op.rstd.as<R>()[row] = rstd;
        for (std::int64_t i = 0; i < d; ++i) y[i] = static_cast<T>(static_cast<R>(x[i]) * rstd * static_cast<R>(weight[i]));
      }
    });
  });
}

void rmsnorm_backward(const RmsNormBackward& op, const Tensor& partials) {
  visit_float(op.x.dtype, [&]<class T>() {
    using R = Real<T>;
    const std::int64_t step = rows_per_partial(op.x.rows());
    parallel_ranges(op.x.rows(), step, [&](std::int64_t begin, std::int64_t end) {
      backward_rows<T>(op, begin, end, row_of<R>(partials, begin / step));
    });
  });
  add_partials(partials, op.gweight);
}

}  // namespace octet::kernels::cpu
