#include "octet/kernels/head_norm/head_norm_cpu.h"

#include <cmath>

#include "octet/base/threads.h"
#include "octet/kernels/column_sums/column_sums_cpu.h"
#include "octet/kernels/vector_math.h"

namespace octet::kernels::cpu {
namespace {

constexpr std::int64_t kHeadNormRowsPerTask = 16;

template <class T>
T* head_of(const Tensor& x, const HeadNorm& norm, std::int64_t row, std::int64_t head) {
  return x.as<T>() + row * x.row_stride + head * norm.head_dim;
}

template <class T>
const T* weight_of(const HeadNorm& norm, std::int64_t head) {
  return (head < norm.q_heads ? norm.q_weight : norm.k_weight).as<T>();
}

}  // namespace

void head_norm_forward(const HeadNormForward& op) {
  const HeadNorm& norm = op.norm;
  visit_float(op.x.dtype, [&]<class T>() {
    using R = Real<T>;
    const std::int64_t d = norm.head_dim;
    parallel_ranges(op.x.rows(), kHeadNormRowsPerTask, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        for (std::int64_t head = 0; head < norm.heads(); ++head) {
          T* __restrict y = head_of<T>(op.x, norm, row, head);
          T* __restrict x = head_of<T>(op.before, norm, row, head);
          const T* __restrict weight = weight_of<T>(norm, head);
          for (std::int64_t i = 0; i < d; ++i) x[i] = y[i];
          const R squares = lane_sum<R>(d, [x](std::int64_t i) { return static_cast<R>(x[i]) * static_cast<R>(x[i]); });
          const R rstd = R{1} / std::sqrt(squares / static_cast<R>(d) + static_cast<R>(op.epsilon));
          op.rstd.as<R>()[row * norm.heads() + head] = rstd;
          for (std::int64_t i = 0; i < d; ++i) y[i] = static_cast<T>(static_cast<R>(x[i]) * rstd * static_cast<R>(weight[i]));
        }
      }
    });
  });
}

void head_norm_backward(const HeadNormBackward& op, const Tensor& q_partials, const Tensor& k_partials) {
  const HeadNorm& norm = op.norm;
  visit_float(op.g.dtype, [&]<class T>() {
    using R = Real<T>;
    const std::int64_t d = norm.head_dim, step = rows_per_partial(op.g.rows());
    parallel_ranges(op.g.rows(), step, [&](std::int64_t begin, std::int64_t end) {
      R* const q_partial = q_partials.as<R>() + begin / step * d;
      R* const k_partial = k_partials.as<R>() + begin / step * d;
      for (std::int64_t i = 0; i < d; ++i) q_partial[i] = k_partial[i] = 0;
      for (std::int64_t row = begin; row < end; ++row) {
        for (std::int64_t head = 0; head < norm.heads(); ++head) {
          T* __restrict g = head_of<T>(op.g, norm, row, head);
          const T* __restrict x = head_of<T>(op.before, norm, row, head);
          const T* __restrict weight = weight_of<T>(norm, head);
          R* __restrict partial = head < norm.q_heads ? q_partial : k_partial;
          const R rstd = op.rstd.as<R>()[row * norm.heads() + head];
          const R dot = lane_sum<R>(d, [=](std::int64_t i) {
            return static_cast<R>(g[i]) * static_cast<R>(weight[i]) * (static_cast<R>(x[i]) * rstd);
          });
          const R mean = dot / static_cast<R>(d);
          for (std::int64_t i = 0; i < d; ++i) {
            const R gy = static_cast<R>(g[i]), n = static_cast<R>(x[i]) * rstd;
            g[i] = static_cast<T>(rstd * (gy * static_cast<R>(weight[i]) - n * mean));
            partial[i] += gy * n;
          }
        }
      }
    });
  });
  add_partials(q_partials, op.gq_weight);
  add_partials(k_partials, op.gk_weight);
}

}  // namespace octet::kernels::cpu
