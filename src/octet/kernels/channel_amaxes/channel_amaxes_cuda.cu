#include "octet/device/cuda/cuda.h"
#include "octet/kernels/block_grid_cuda.cuh"
#include "octet/kernels/channel_amaxes/channel_amaxes_cuda.h"

namespace octet::kernels::cuda {
namespace {

constexpr int kBlock = 256;
constexpr std::int64_t kRows = 64;

// One thread for each channel of kRows rows. Floats that are not negative compare like their bits.
template <class T>
__global__ void __launch_bounds__(kBlock)
    channel_amaxes_kernel(const T* x, std::int64_t stride, std::int64_t rows, std::int64_t cols, float* y, const BlockGrid grid) {
  const std::int64_t c = std::int64_t{grid.col()} * kBlock + threadIdx.x;
  if (c >= cols) return;
  const std::int64_t begin = grid.row() * kRows, end = begin + kRows < rows ? begin + kRows : rows;
  float amax = 0;
  for (std::int64_t row = begin; row < end; ++row)
    amax = fmaxf(amax, fabsf(static_cast<float>(static_cast<BFloat16>(x[row * stride + c]))));
  atomicMax(reinterpret_cast<unsigned*>(y) + c, __float_as_uint(amax));
}

}  // namespace

void channel_amaxes(Stream& stream, const ChannelAmaxes& op) {
  stream.zero(op.y.data, op.y.bytes());
  const std::int64_t rows = op.x.rows(), cols = op.x.shape[1];
  if (rows == 0 || cols == 0) return;
  const BlockGrid grid(rows, kRows, cols, kBlock);
  const auto launch = [&]<class T>(const T* x) {
    channel_amaxes_kernel<<<grid.blocks(), kBlock, 0, octet::cuda::native_stream(stream)>>>(x, op.x.row_stride, rows, cols,
                                                                                            op.y.as<float>(), grid);
    octet::cuda::check_launch("channel_amaxes");
  };
  require(op.x.dtype == DType::bf16 || op.x.dtype == DType::f32, "channel_amaxes on CUDA: ", name_of(op.x.dtype),
          ", not BF16 or F32");
  if (op.x.dtype == DType::bf16) return launch(op.x.as<BFloat16>());
  launch(op.x.as<float>());
}

}  // namespace octet::kernels::cuda
