#include "octet/kernels/quantize/codes_cuda.cuh"
#include "octet/kernels/quantize/quantize_cuda.h"

namespace octet::kernels::cuda {
namespace {

struct TransposeCodes : Extent {
  const std::uint8_t* codes;
  std::int64_t stride;
  Codes out;  // its columnwise codes

  __device__ uint2 load(int row, int col) const {
    if (row >= rows || col >= cols) return {};
    const std::uint8_t* const at = codes + row * stride + col;
    if (wide) return *reinterpret_cast<const uint2*>(at);
    uint2 vector = {};
#pragma unroll 1
    for (int i = min(kVector, cols - col) - 1; i >= 0; --i)
      vector = {vector.x << 8 | at[i], __funnelshift_l(vector.x, vector.y, 8)};
    return vector;
  }
};

__global__ void __launch_bounds__(kTileThreads) codes_kernel(const TransposeCodes op, const BlockGrid grid) {
  __shared__ TransposedTile transposed;
  if (op.groups && op.groups[grid.row()] < 0) return;
  const Tile tile{.row0 = grid.row() * kTile,
                  .col0 = grid.col() * kTile,
                  .rows = op.rows,
                  .cols = op.cols};
  uint2 codes[kTileRows / 4][4];
#pragma unroll
  for (int i = 0; i < kTileRows; ++i) codes[i / 4][i % 4] = op.load(tile.row(i), tile.col());
#pragma unroll
  for (int step = 0; step < kTileRows / 4; ++step) transposed.put(tile, step, codes[step]);
  __syncthreads();
  transposed.store(tile, op.out);
}

void transpose(Stream& stream, const Quantized& q, const RowGroups& groups) {
  const auto rows = static_cast<int>(q.rowwise.rows()), cols = static_cast<int>(q.rowwise.shape[1]);
  if (rows == 0 || cols == 0) return;
  const std::uint8_t* const codes = q.rowwise.as_bytes();
  const bool wide = on_multiple(codes, kVector) && q.rowwise.row_stride % kVector == 0 && cols % kVector == 0;
  const TransposeCodes op{
      {.rows = rows, .cols = cols, .wide = wide, .groups = groups_of(groups)}, codes, q.rowwise.row_stride, Codes(q, 0)};
  const BlockGrid grid(q.columnwise.shape[1], kTile, cols, kTile);
  codes_kernel<<<grid.blocks(), kTileThreads, 0, octet::cuda::native_stream(stream)>>>(op, grid);
  octet::cuda::check_launch("transpose_codes");
}

__global__ void invert_kernel(const float* scale, std::int64_t stride, int count, float* scale_inv) {
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kTileThreads) scale_inv[i] = 1.0f / scale[i * stride];
}

// x [rows, cols]
__global__ void scales_kernel(const float* x, std::int64_t stride, int rows, int cols, float* y, std::int64_t y_stride) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < rows * cols) y[i % cols * y_stride + i / cols] = x[i / cols * stride + i % cols];
}

}  // namespace

void transpose_codes(Stream& stream, const Quantized& q) {
  const cudaStream_t native = octet::cuda::native_stream(stream);
  transpose(stream, q, {});
  if (!is_square(q.tile) || q.columnwise_scale_inv.data == q.rowwise_scale_inv.data) return;
  const bool one = q.tile == ScaleTile::tensor;
  const int scale_rows = one ? 1 : static_cast<int>(q.rowwise_scale_inv.rows()),
            scale_cols = one ? 1 : static_cast<int>(q.rowwise_scale_inv.shape[1]);
  constexpr int kThreads = 256;
  scales_kernel<<<static_cast<unsigned>(ceil_div(scale_rows * scale_cols, kThreads)), kThreads, 0, native>>>(
      q.rowwise_scale_inv.as<float>(), q.rowwise_scale_inv.row_stride, scale_rows, scale_cols, q.columnwise_scale_inv.as<float>(),
      q.columnwise_scale_inv.row_stride);
  octet::cuda::check_launch("transpose_codes: scales");
}

void complete_codes(Stream& stream, const QuantizeEpilogue& to) {
  invert_kernel<<<1, kTileThreads, 0, octet::cuda::native_stream(stream)>>>(
      to.scale, to.scale_stride, static_cast<int>(to.out.rowwise_scale_inv.elements()), to.out.rowwise_scale_inv.as<float>());
  octet::cuda::check_launch("complete_codes");
  if (to.out.columnwise) transpose(stream, to.out, to.groups);
}

}  // namespace octet::kernels::cuda
