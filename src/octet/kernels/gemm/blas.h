// One call of OpenBLAS on the calling thread: the inner product of the CPU kernels, which cut their work into such calls and
// run several at once. The bits of a call do not depend on what else runs.
#pragma once

#include <cstdint>

namespace octet::kernels::cpu {

enum class Order : std::uint8_t { as_stored, transposed };

// Row-major, slices of the first dim `stride` elements apart.
template <class T>
struct BlasMatrix {
  const T* data = nullptr;
  std::int64_t stride = 0;
  Order order = Order::as_stored;
};

// D = alpha * A B + beta * D, with A [m, k] and B [k, n] after the transposition of each. D is not read when beta is 0.
template <class T>
struct Product {
  std::int64_t m = 0, n = 0, k = 0;
  T alpha = 1;
  BlasMatrix<T> a, b;
  T beta = 0;
  T* d = nullptr;
  std::int64_t d_stride = 0;
};
void multiply(const Product<float>& product);
void multiply(const Product<double>& product);

const char* blas_core_name();

// The shortest time of D [m, n] = A Bᵀ in FP32 by OpenBLAS with its own threads, to measure ours against. Leaves it with one
// thread; not to be called while products are under way.
double blas_seconds(std::int64_t m, std::int64_t n, std::int64_t k, int threads);

}  // namespace octet::kernels::cpu
