#include "octet/kernels/norm/norm_cpu.h"

#include "octet/base/threads.h"
#include "octet/kernels/vector_math.h"

namespace octet::kernels::cpu {

void sum_squares(const SumSquares& op, double* partials) {
  double* end_of_partials = partials;
  for (const Tensor& tensor : op.x) {
    visit_float(tensor.dtype, [&]<class T>() {
      const T* x = tensor.as<T>();
      parallel_ranges(tensor.elements(), kSumSquaresPiece, [&](std::int64_t begin, std::int64_t end) {
        const T* piece = x + begin;
        end_of_partials[begin / kSumSquaresPiece] = lane_sum<double>(end - begin, [piece](std::int64_t i) {
          const double value = static_cast<double>(static_cast<Real<T>>(piece[i]));
          return value * value;
        });
      });
    });
    end_of_partials += sum_squares_pieces(tensor);
  }
  for (const double* partial = partials; partial < end_of_partials; ++partial) *op.total += *partial;
}

}  // namespace octet::kernels::cpu
