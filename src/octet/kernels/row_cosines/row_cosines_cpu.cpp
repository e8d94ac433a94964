#include "octet/kernels/row_cosines/row_cosines_cpu.h"

#include <cmath>

#include "octet/base/threads.h"

namespace octet::kernels::cpu {
namespace {

double rounded(BFloat16 x) { return static_cast<float>(x); }
double rounded(float x) { return static_cast<float>(BFloat16(x)); }
double rounded(double x) { return x; }

}  // namespace

void row_cosines(const RowCosines& op) {
  constexpr std::int64_t kPairsPerTask = 16;
  const std::int64_t pairs = op.x.rows() / 2, cols = op.x.cols();
  visit_float(op.x.dtype, [&]<class T>() {
    parallel_ranges(pairs, kPairsPerTask, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t pair = begin; pair < end; ++pair) {
        const T* const a = op.x.as<T>() + pair * op.x.row_stride;
        const T* const b = a + pairs * op.x.row_stride;
        double dot = 0, of_a = 0, of_b = 0;
        for (std::int64_t i = 0; i < cols; ++i) {
          const double u = rounded(a[i]), v = rounded(b[i]);
          dot += u * v;
          of_a += u * u;
          of_b += v * v;
        }
        const double lengths = std::sqrt(of_a) * std::sqrt(of_b);
        op.y.as<float>()[pair] = lengths > 0 ? static_cast<float>(std::fabs(dot) / lengths) : 0.0f;
      }
    });
  });
}

}  // namespace octet::kernels::cpu
