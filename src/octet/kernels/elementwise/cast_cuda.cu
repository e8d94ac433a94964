#include <cuda_runtime.h>

#include <algorithm>
#include <cstring>

#include "octet/base/math.h"
#include "octet/device/cuda/cuda.h"
#include "octet/kernels/block_cuda.h"
#include "octet/kernels/elementwise/cast_cuda.h"
#include "octet/kernels/elementwise/convert.h"

namespace octet::kernels::cuda {
namespace {

using octet::cuda::check_launch;
using octet::cuda::stream_of;

constexpr int kThreads = 256;
constexpr std::int64_t kMostRowBlocks = 65535;  // CUDA's limit on gridDim.y

template <class T>
struct Rows {
  T* data;
  std::int64_t stride;
};

// Each thread: kWidth elements of a row, in 16-byte accesses when `aligned`; rows gridDim.y apart.
template <class To, class From>
__global__ void __launch_bounds__(kThreads)
    cast_kernel(Rows<const From> x, Rows<To> y, std::int64_t rows, std::int64_t cols, bool aligned) {
  const std::int64_t begin = (std::int64_t{blockIdx.x} * kThreads + threadIdx.x) * kWidth;
  for (std::int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
    const From* from = x.data + row * x.stride;
    To* to = y.data + row * y.stride;
    if (aligned && begin + kWidth <= cols) {
      const Eight<From> loaded = load_eight(from + begin);
      From in[kWidth];
      std::memcpy(in, &loaded, sizeof in);
      To out[kWidth];
      for (int i = 0; i < kWidth; ++i) out[i] = convert<To>(in[i]);
      Eight<To> stored;
      std::memcpy(&stored, out, sizeof out);
      store_eight(to + begin, stored);
    } else {
      for (std::int64_t i = begin; i < std::min(begin + kWidth, cols); ++i) to[i] = convert<To>(from[i]);
    }
  }
}

template <class To, class From>
void launch(cudaStream_t stream, const Cast& op) {
  const bool flat = op.x.contiguous() && op.y.contiguous();
  const std::int64_t rows = flat ? 1 : op.x.rows(), cols = flat ? op.x.elements() : op.x.cols();
  if (rows == 0 || cols == 0) return;
  const Rows<const From> x{op.x.as<From>(), op.x.row_stride};
  const Rows<To> y{op.y.as<To>(), op.y.row_stride};
  const bool aligned = are_aligned(x.data, y.data) && (rows == 1 || (x.stride % kWidth == 0 && y.stride % kWidth == 0));
  const dim3 blocks(static_cast<unsigned>(ceil_div(cols, kThreads * kWidth)),
                    static_cast<unsigned>(std::min(rows, kMostRowBlocks)));
  cast_kernel<To, From><<<blocks, kThreads, 0, stream>>>(x, y, rows, cols, aligned);
  check_launch("cast");
}

}  // namespace

void cast(Queue& queue, const Cast& op) {
  const cudaStream_t stream = stream_of(queue);
  visit_castable(op.x.dtype,
                 [&]<class From>() { visit_castable(op.y.dtype, [&]<class To>() { launch<To, From>(stream, op); }); });
}

}  // namespace octet::kernels::cuda
