#include "octet/kernels/swiglu/swiglu_cpu.h"

#include <algorithm>

#include "octet/base/threads.h"
#include "octet/kernels/vector_math.h"

namespace octet::kernels::cpu {
namespace {

constexpr std::int64_t kSwigluRowsPerTask = 16;
constexpr std::int64_t kSwigluPiece = 256;

}  // namespace

void swiglu_forward(const SwigluForward& op) {
  visit_float(op.y.dtype, [&]<class T>() {
    using R = Real<T>;
    const std::int64_t f = op.y.cols();
    parallel_ranges(op.y.rows(), kSwigluRowsPerTask, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        const T* __restrict gate = op.gate_up.as<T>() + row * op.gate_up.row_stride;
        const T* __restrict up = gate + f;
        T* __restrict y = op.y.as<T>() + row * op.y.row_stride;
        for (std::int64_t i = 0; i < f; ++i) {
          const R z = static_cast<R>(gate[i]);
          y[i] = static_cast<T>(z * sigmoid(z) * static_cast<R>(up[i]));
        }
      }
    });
  });
}

// d silu(z) / dz = s (1 + z (1 - s)),  s = sigmoid(z).
void swiglu_backward(const SwigluBackward& op) {
  visit_float(op.gy.dtype, [&]<class T>() {
    using R = Real<T>;
    const std::int64_t f = op.gy.cols();
    parallel_ranges(op.gy.rows(), kSwigluRowsPerTask, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        const T* gate = op.gate_up.as<T>() + row * op.gate_up.row_stride;
        const T* up = gate + f;
        const T* gy = op.gy.as<T>() + row * op.gy.row_stride;
        T* ggate = op.ggate_up.as<T>() + row * op.ggate_up.row_stride;
        T* gup = ggate + f;
        // ggate may be gate, so each piece is read completely before it is written.
        for (std::int64_t first = 0; first < f; first += kSwigluPiece) {
          const std::int64_t count = std::min(kSwigluPiece, f - first);
          R by_gate[kSwigluPiece], by_up[kSwigluPiece];
          for (std::int64_t i = 0; i < count; ++i) {
            const R z = static_cast<R>(gate[first + i]);
            const R g = static_cast<R>(gy[first + i]);
            const R s = sigmoid(z);
            by_gate[i] = g * static_cast<R>(up[first + i]) * (s * (R{1} + z * (R{1} - s)));
            by_up[i] = g * (z * s);
          }
          store_row(ggate + first, by_gate, count);
          store_row(gup + first, by_up, count);
        }
      }
    });
  });
}

}  // namespace octet::kernels::cpu
