#include "octet/kernels/layernorm/layernorm_cpu.h"

#include <cmath>

#include "octet/base/threads.h"
#include "octet/kernels/column_sums/column_sums_cpu.h"
#include "octet/kernels/norm_rows.h"
#include "octet/kernels/vector_math.h"

namespace octet::kernels::cpu {
namespace {

constexpr std::int64_t kLayerNormRowsPerTask = 16;

// Accumulates gx for rows [begin, end), and writes their partial sums of gweight and gbias.
template <class T>
void backward_rows(const LayerNormBackward& op, std::int64_t begin, std::int64_t end, Real<T>* __restrict of_weight,
                   Real<T>* __restrict of_bias) {
  using R = Real<T>;
  const std::int64_t d = op.x.cols();
  const T* __restrict weight = op.weight.as<T>();
  for (std::int64_t i = 0; i < d; ++i) of_weight[i] = of_bias[i] = 0;
  for (std::int64_t row = begin; row < end; ++row) {
    const T* __restrict gy = row_of<T>(op.gy, row);
    const T* __restrict x = row_of<T>(op.x, row);
    T* __restrict gx = row_of<T>(op.gx, row);
    const R mean = op.mean.as<R>()[row], rstd = op.rstd.as<R>()[row];
    const auto gn = [=](std::int64_t i) { return static_cast<R>(gy[i]) * static_cast<R>(weight[i]); };
    const R sum = lane_sum<R>(d, gn);
    const R dot = lane_sum<R>(d, [=](std::int64_t i) { return gn(i) * ((static_cast<R>(x[i]) - mean) * rstd); });
    const R mean_g = sum / static_cast<R>(d), mean_dot = dot / static_cast<R>(d);
    for (std::int64_t i = 0; i < d; ++i) {
      const R g = static_cast<R>(gy[i]);
      const R n = (static_cast<R>(x[i]) - mean) * rstd;
      gx[i] = static_cast<T>(static_cast<R>(gx[i]) + rstd * (g * static_cast<R>(weight[i]) - mean_g - n * mean_dot));
      of_weight[i] += g * n;
      of_bias[i] += g;
    }
  }
}

}  // namespace

void layernorm_forward(const LayerNormForward& op) {
  visit_float(op.x.dtype, [&]<class T>() {
    using R = Real<T>;
    const std::int64_t d = op.x.cols();
    const R epsilon = static_cast<R>(op.epsilon);
    const T* __restrict weight = op.weight.as<T>();
    const T* __restrict bias = op.bias.as<T>();
    parallel_ranges(op.x.rows(), kLayerNormRowsPerTask, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        const T* __restrict x = row_of<T>(op.x, row);
        T* __restrict y = row_of<T>(op.y, row);
        const R mean = lane_sum<R>(d, [x](std::int64_t i) { return static_cast<R>(x[i]); }) / static_cast<R>(d);
        const R squares = lane_sum<R>(d, [=](std::int64_t i) {
          const R centred = static_cast<R>(x[i]) - mean;
          return centred * centred;
        });
        const R rstd = R{1} / std::sqrt(squares / static_cast<R>(d) + epsilon);
        op.mean.as<R>()[row] = mean;
        op.rstd.as<R>()[row] = rstd;
        for (std::int64_t i = 0; i < d; ++i) {
          y[i] = static_cast<T>((static_cast<R>(x[i]) - mean) * rstd * static_cast<R>(weight[i]) + static_cast<R>(bias[i]));
        }
      }
    });
  });
}

void layernorm_backward(const LayerNormBackward& op, const Tensor& weight_partials, const Tensor& bias_partials) {
  visit_float(op.x.dtype, [&]<class T>() {
    using R = Real<T>;
    const std::int64_t step = rows_per_partial(op.x.rows());
    parallel_ranges(op.x.rows(), step, [&](std::int64_t begin, std::int64_t end) {
      backward_rows<T>(op, begin, end, row_of<R>(weight_partials, begin / step), row_of<R>(bias_partials, begin / step));
    });
  });
  add_partials(weight_partials, op.gweight);
  add_partials(bias_partials, op.gbias);
}

}  // namespace octet::kernels::cpu
