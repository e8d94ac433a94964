#include <cuda_runtime.h>

#include <algorithm>
#include <cstring>

#include "octet/base/math.h"
#include "octet/base/rng.h"
#include "octet/device/cuda/cuda.h"
#include "octet/kernels/dropout/dropout_cuda.h"
#include "octet/kernels/elementwise/convert.h"
#include "octet/kernels/vector_cuda.cuh"

namespace octet::kernels::cuda {
namespace {

constexpr int kMostThreads = 256, kWarpLanes = 32;
constexpr std::int64_t kMostRowBlocks = 65535;  // CUDA's limit on gridDim.y

template <class T>
struct Rows {
  const T* x;
  T* y;
  std::int64_t x_stride, y_stride, rows, cols;
};

struct Mask {
  Rng rng;
  std::uint32_t step, threshold;
  const std::int32_t* tokens;
  const std::int32_t* tiles;  // null without groups
  std::int64_t first_feature, first_expert;
};

template <bool kAdds, class T>
__device__ T result(T y, T x, bool keeps) {
  if constexpr (kAdds) return keeps ? sum(y, x) : y;
  return keeps ? x : T{};
}

// Each thread has kVector elements of a row, and rows that are gridDim.y apart. If vectors are aligned, in memory and to four
// features, it makes two blocks of random numbers for them, otherwise one for each element.
template <bool kAdds, bool kAligned, class T>
__global__ void __launch_bounds__(kMostThreads) dropout_kernel(const Rows<T> a, const Mask mask) {
  const std::int64_t begin = (std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * kVector;
  if (begin >= a.cols) return;
  for (std::int64_t row = blockIdx.y; row < a.rows; row += gridDim.y) {
    const std::int32_t group = mask.tiles ? mask.tiles[row / kGroupRows] : 0;
    if (group < 0) continue;
    const std::uint64_t token = static_cast<std::uint32_t>(mask.tokens[row]);
    const std::uint64_t first = token << 32 | static_cast<std::uint64_t>(mask.first_expert + group) << kFeatureBits;
    const T* const x = a.x + row * a.x_stride;
    T* const y = a.y + row * a.y_stride;
    if constexpr (kAligned) {
      T in[kVector], out[kVector];
      Vector<T> vector = load_vector(x + begin);
      std::memcpy(in, &vector, sizeof in);
      if constexpr (kAdds) {
        vector = load_vector(y + begin);
        std::memcpy(out, &vector, sizeof out);
      }
#pragma unroll
      for (int half = 0; half < kVector / 4; ++half) {
        const Philox4 words = mask.rng.words(first | static_cast<std::uint64_t>((mask.first_feature + begin) / 4 + half), mask.step);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          T& to = out[4 * half + i];
          to = result<kAdds>(to, in[4 * half + i], words[static_cast<std::size_t>(i)] >= mask.threshold);
        }
      }
      std::memcpy(&vector, out, sizeof out);
      store_vector_unsplit(y + begin, vector);
    } else {
      for (std::int64_t i = begin; i < std::min(begin + kVector, a.cols); ++i) {
        const std::int64_t feature = mask.first_feature + i;
        const Philox4 words = mask.rng.words(first | static_cast<std::uint64_t>(feature / 4), mask.step);
        y[i] = result<kAdds>(y[i], x[i], words[static_cast<std::size_t>(feature % 4)] >= mask.threshold);
      }
    }
  }
}

}  // namespace

void dropout(Stream& stream, const Dropout& op) {
  const std::int64_t rows = op.x.rows(), cols = op.x.cols();
  if (rows == 0 || cols == 0) return;
  const Mask mask{.rng = Rng(op.seed, RngStream::dropout, op.subject),
                  .step = op.step,
                  .threshold = op.threshold(),
                  .tokens = op.tokens.as<std::int32_t>(),
                  .tiles = op.groups ? op.groups.tiles.as<std::int32_t>() : nullptr,
                  .first_feature = op.first_feature,
                  .first_expert = op.first_expert};
  const bool aligned = in_vectors(op.x) && in_vectors(op.y) && op.first_feature % 4 == 0;
  const std::int64_t lanes = round_up(ceil_div(cols, std::int64_t{kVector}), std::int64_t{kWarpLanes});
  const auto threads = static_cast<unsigned>(std::min<std::int64_t>(kMostThreads, lanes));
  const dim3 blocks(static_cast<unsigned>(ceil_div(lanes, std::int64_t{threads})),
                    static_cast<unsigned>(std::min(rows, kMostRowBlocks)));
  visit_float(op.x.dtype, [&]<class T>() {
    const Rows<T> a{.x = op.x.as<T>(),
                    .y = op.y.as<T>(),
                    .x_stride = op.x.row_stride,
                    .y_stride = op.y.row_stride,
                    .rows = rows,
                    .cols = cols};
    const auto kernel = op.adds ? (aligned ? dropout_kernel<true, true, T> : dropout_kernel<true, false, T>)
                                : (aligned ? dropout_kernel<false, true, T> : dropout_kernel<false, false, T>);
    kernel<<<blocks, threads, 0, octet::cuda::native_stream(stream)>>>(a, mask);
  });
  octet::cuda::check_launch("dropout");
}

}  // namespace octet::kernels::cuda
