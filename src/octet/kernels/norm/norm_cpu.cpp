#include "octet/kernels/norm/norm_cpu.h"

#include "octet/base/math.h"
#include "octet/base/threads.h"
#include "octet/kernels/vector_math.h"

namespace octet::kernels::cpu {

void sum_squares(const SumSquares& op, double* partials) {
  const std::int64_t count = op.x.elements();
  visit_float(op.x.dtype, [&]<class T>() {
    const T* x = op.x.as<T>();
    parallel_ranges(count, kSumSquaresPiece, [&](std::int64_t begin, std::int64_t end) {
      const T* piece = x + begin;
      partials[begin / kSumSquaresPiece] = lane_sum<double>(end - begin, [piece](std::int64_t i) {
        const double value = static_cast<double>(static_cast<Real<T>>(piece[i]));
        return value * value;
      });
    });
  });
  for (std::int64_t i = 0; i < ceil_div(count, kSumSquaresPiece); ++i) *op.total += partials[i];
}

}  // namespace octet::kernels::cpu
