#include "octet/kernels/norm/norm_cpu.h"

#include "octet/kernels/vector_math.h"

namespace octet::kernels::cpu {

void sum_squares(const SumSquares& op, double* partials) {
  const std::vector<Tensor>& tensors = op.x.tensors();
  parallel_chunks(
      tensors, [](const Tensor& x) { return x.elements(); }, TensorList::kChunk,
      [&](std::size_t number, std::int64_t chunk, std::int64_t begin, std::int64_t end) {
        visit_float(tensors[number].dtype, [&]<class T>() {
          const T* piece = tensors[number].as<T>() + begin;
          partials[chunk] = lane_sum<double>(end - begin, [piece](std::int64_t i) {
            const double value = static_cast<double>(static_cast<Real<T>>(piece[i]));
            return value * value;
          });
        });
      });
  for (std::int64_t chunk = 0; chunk < op.x.table().chunks(); ++chunk) *op.total += partials[chunk];
}

}  // namespace octet::kernels::cpu
