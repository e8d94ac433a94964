// Calls of OpenBLAS on the calling thread. The CPU kernels divide their work into such calls and run several at once. A call
// gives the same bits whatever other threads do.
#pragma once

#include <cstdint>

namespace octet::kernels::cpu {

enum class Order : std::uint8_t { as_stored, transposed };

// A row-major matrix. Rows are `stride` elements apart.
template <class T>
struct BlasMatrix {
  const T* data = nullptr;
  std::int64_t stride = 0;
  Order order = Order::as_stored;
};

// D = alpha * A B + beta * D. A is [m, k] and B [k, n] after the transposition that each requests. If beta is 0, D is not read.
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

// The shortest measured time of D [m, n] = A Bᵀ in FP32 by OpenBLAS with its own threads, as a reference for the kernels here.
// Leaves OpenBLAS with one thread. Must not be called while GEMMs run.
double blas_seconds(std::int64_t m, std::int64_t n, std::int64_t k, int threads);

}  // namespace octet::kernels::cpu
