#include "octet/kernels/rope/rope_cpu.h"

#include "octet/base/threads.h"

namespace octet::kernels::cpu {
namespace {

constexpr std::int64_t kRopeRowsPerTask = 32;

// Rotates one head. x0 and x1 are the two halves of the rotated dims.
template <class T>
void rotate(T* __restrict x0, T* __restrict x1, const float* __restrict cos, const float* __restrict sin, Real<T> sign,
            std::int64_t half) {
  using R = Real<T>;
  for (std::int64_t i = 0; i < half; ++i) {
    const R a = static_cast<R>(x0[i]), b = static_cast<R>(x1[i]);
    const R c = static_cast<R>(cos[i]), s = sign * static_cast<R>(sin[i]);
    x0[i] = static_cast<T>(a * c - b * s);
    x1[i] = static_cast<T>(b * c + a * s);
  }
}

}  // namespace

void rope(const Rope& op) {
  const std::int64_t half = op.rotary_dim / 2;
  const std::int32_t* positions = op.positions.as<std::int32_t>();
  const float* table = op.table.as<float>();
  for (std::int64_t row = 0; row < op.x.rows(); ++row) {
    require(0 <= positions[row] && positions[row] < op.table.rows(), "rope: position ", positions[row], " of token ", row,
            " is outside the table of ", op.table.rows());
  }
  visit_float(op.x.dtype, [&]<class T>() {
    const Real<T> sign = op.direction == Rope::Direction::forward ? 1 : -1;
    parallel_ranges(op.x.rows(), kRopeRowsPerTask, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        const float* cos = table + positions[row] * op.table.row_stride;
        T* x = op.x.as<T>() + row * op.x.row_stride;
        for (std::int64_t head = 0; head < op.rotated; head += op.head_dim) {
          rotate<T>(x + head, x + head + half, cos, cos + half, sign, half);
        }
      }
    });
  });
}

}  // namespace octet::kernels::cpu
