// The kernel of the CUDA backend's element-wise ops.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstring>

#include "octet/base/math.h"
#include "octet/device/cuda/cuda.h"
#include "octet/kernels/vector_cuda.cuh"
#include "octet/tensor/tensor.h"

namespace octet::kernels::cuda {

constexpr int kRunThreads = 256;
constexpr std::int64_t kMostRowBlocks = 65535;  // CUDA's limit on gridDim.y

template <class T>
struct Rows {
  T* data;
  std::int64_t stride;
};

template <class T>
__device__ void load_elements(const T* from, T (&elements)[kVector]) {
  const Vector<T> loaded = load_vector(from);
  std::memcpy(elements, &loaded, sizeof elements);
}

// y = F{}(y, x). Each thread processes kVector elements of a row, with 16-byte accesses if `aligned`, in rows that are gridDim.y
// apart. An operand that F does not use is not read.
template <class F, class To, class From>
__global__ void __launch_bounds__(kRunThreads)
    runs_kernel(Rows<const From> x, Rows<To> y, std::int64_t rows, std::int64_t cols, bool aligned) {
  const std::int64_t begin = (std::int64_t{blockIdx.x} * kRunThreads + threadIdx.x) * kVector;
  for (std::int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
    const From* from = x.data + row * x.stride;
    To* to = y.data + row * y.stride;
    if (aligned && begin + kVector <= cols) {
      From in[kVector];
      To out[kVector];
      load_elements(from + begin, in);
      load_elements(to + begin, out);
      for (int i = 0; i < kVector; ++i) out[i] = F{}(out[i], in[i]);
      Vector<To> stored;
      std::memcpy(&stored, out, sizeof out);
      store_vector_unsplit(to + begin, stored);
    } else {
      for (std::int64_t i = begin; i < std::min(begin + kVector, cols); ++i) to[i] = F{}(to[i], from[i]);
    }
  }
}

template <class F, class To, class From>
void launch_runs(Stream& stream, const char* name, const Tensor& from, const Tensor& to) {
  const bool flat = from.contiguous() && to.contiguous();
  const std::int64_t rows = flat ? 1 : from.rows(), cols = flat ? from.elements() : from.cols();
  if (rows == 0 || cols == 0) return;
  const Rows<const From> x{from.as<From>(), from.row_stride};
  const Rows<To> y{to.as<To>(), to.row_stride};
  const bool aligned = are_aligned(x.data, y.data) && (rows == 1 || (x.stride % kVector == 0 && y.stride % kVector == 0));
  const dim3 blocks(static_cast<unsigned>(ceil_div(cols, kRunThreads * kVector)),
                    static_cast<unsigned>(std::min(rows, kMostRowBlocks)));
  runs_kernel<F><<<blocks, kRunThreads, 0, octet::cuda::native_stream(stream)>>>(x, y, rows, cols, aligned);
  octet::cuda::check_launch(name);
}

}  // namespace octet::kernels::cuda
