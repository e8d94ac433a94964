#include <algorithm>

#include "octet/device/cuda/cuda.h"
#include "octet/kernels/block_grid_cuda.cuh"
#include "octet/kernels/gemm/gemm_low_rank_cuda.h"
#include "octet/kernels/vector_cuda.cuh"

namespace octet::kernels::cuda {
namespace {

constexpr int kWarps = 8, kThreads = 32 * kWarps;
constexpr int kVectors = 2;           // of D, that a thread has in a row
constexpr int kTiles = 4 * kVectors;  // of 8 columns, that a warp computes
constexpr int kWarpColumns = 8 * kTiles;
constexpr int kStepRows = 16, kBlockRows = 8 * kStepRows;
constexpr int kMostK = 64, kLeastN = 128;

struct LowRank {
  const BFloat16* a;  // [m, k]
  std::int64_t a_stride;
  const BFloat16* b;  // element (n, k) at b[n * b_row + k * b_k]
  std::int64_t b_row, b_k;
  BFloat16* d;
  std::int64_t d_stride;
  int m, n;
  float factor;
};

// d += a · b, 16 x 8 x 16. PTX ISA, "Matrix fragments for mma.m16n8k16": with g = lane / 4 and t = lane % 4, a thread has the
// rows g and g + 8 of A and D, and the column g of B. Along K it has 2t, 2t + 1, 2t + 8 and 2t + 9; of D the columns 2t and 2t
// + 1.
__device__ void multiply(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ unsigned pair_at(const BFloat16* x) { return *reinterpret_cast<const unsigned*>(x); }

// What a warp reads for 16 rows of D: a thread has the rows g and g + 8.
template <int kSteps>
struct Rows {
  Bf16Vector d[2][kVectors];
  unsigned a[kSteps][4];
};

// A warp keeps B of its 64 columns and goes down the rows of D. While it computes 16 rows, it reads the next. The columns of four
// tiles are interleaved, so that a thread's columns are eight adjacent ones: column c of tile j is column
// 32 (j / 4) + 8 (c / 2) + 2 (j % 4) + c % 2 of the warp.
template <int kSteps, bool kAdds>
__global__ void __launch_bounds__(kThreads) low_rank_kernel(const LowRank op, const BlockGrid grid) {
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
  const int first = (grid.col() * kWarps + static_cast<int>(threadIdx.x) / 32) * kWarpColumns;
  if (first >= op.n) return;

  unsigned b[kTiles][kSteps][2];
#pragma unroll
  for (int j = 0; j < kTiles; ++j) {
    const int column = first + 32 * (j / 4) + 8 * (g / 2) + 2 * (j % 4) + g % 2;
#pragma unroll
    for (int i = 0; i < 2 * kSteps; ++i) {
      const BFloat16* const at = op.b + column * op.b_row + (8 * i + 2 * t) * op.b_k;
      unsigned pair = 0;
      if (column < op.n) pair = op.b_k == 1 ? pair_at(at) : at[0].bits | static_cast<unsigned>(at[op.b_k].bits) << 16;
      b[j][i / 2][i % 2] = pair;
    }
  }

  const int begin = grid.row() * kBlockRows, end = min(op.m, begin + kBlockRows);
  const auto column_of = [&](int v) { return first + 32 * v + kVector * t; };
  const auto read = [&](int row) {
    Rows<kSteps> rows = {};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int r = row + g + 8 * i;
      if (r >= end) continue;
      if constexpr (kAdds) {
#pragma unroll
        for (int v = 0; v < kVectors; ++v) {
          if (column_of(v) < op.n) rows.d[i][v] = load_vector(op.d + r * op.d_stride + column_of(v));
        }
      }
#pragma unroll
      for (int k = 0; k < 2 * kSteps; ++k) rows.a[k / 2][i + 2 * (k % 2)] = pair_at(op.a + r * op.a_stride + 8 * k + 2 * t);
    }
    return rows;
  };
  Rows<kSteps> next = read(begin);
  for (int row = begin; row < end; row += kStepRows) {
    const Rows<kSteps> rows = next;
    next = read(row + kStepRows);
    float sums[kTiles][4] = {};
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int j = 0; j < kTiles; ++j) multiply(sums[j], rows.a[step], b[j][step]);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int r = row + g + 8 * i;
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        if (column_of(v) >= op.n || r >= end) continue;
        float values[kVector];
        unpack(rows.d[i][v], values);
#pragma unroll
        for (int c = 0; c < kVector; ++c) values[c] = fmaf(op.factor, sums[4 * v + c / 2][2 * i + c % 2], values[c]);
        store_vector(op.d + r * op.d_stride + column_of(v), pack<BFloat16>(values));
      }
    }
  }
}

bool in_pairs(const Tensor& x) { return on_multiple(x.data, 4) && x.row_stride % 2 == 0; }

}  // namespace

bool is_low_rank(const Gemm& op) {
  using Layout = GemmOperand::Layout;
  const std::int64_t k = op.a.k(), n = op.b.rows();
  return op.a.values.dtype == DType::bf16 && op.d.dtype == DType::bf16 && (!op.c || op.c.data == op.d.data) && k > 0 &&
         k % 16 == 0 && k <= kMostK && n >= kLeastN && n % kVector == 0 && rows_are_aligned(op.d) &&
         op.a.layout == Layout::k_last && in_pairs(op.a.values) && (op.b.layout == Layout::k_first || in_pairs(op.b.values));
}

void low_rank_gemm(Stream& stream, const Gemm& op) {
  const bool k_last = op.b.layout == GemmOperand::Layout::k_last;
  const std::int64_t stride = op.b.values.row_stride;
  const LowRank low{.a = op.a.values.as<BFloat16>(),
                    .a_stride = op.a.values.row_stride,
                    .b = op.b.values.as<BFloat16>(),
                    .b_row = k_last ? stride : 1,
                    .b_k = k_last ? 1 : stride,
                    .d = op.d.as<BFloat16>(),
                    .d_stride = op.d.row_stride,
                    .m = static_cast<int>(op.a.rows()),
                    .n = static_cast<int>(op.b.rows()),
                    .factor = op.factor};
  const BlockGrid grid(low.m, kBlockRows, low.n, kWarps * kWarpColumns);
  const auto launch = [&]<int kSteps>() {
    const auto kernel = op.c ? low_rank_kernel<kSteps, true> : low_rank_kernel<kSteps, false>;
    kernel<<<grid.blocks(), kThreads, 0, octet::cuda::native_stream(stream)>>>(low, grid);
  };
  switch (op.a.k() / 16) {
    case 1:
      launch.template operator()<1>();
      break;
    case 2:
      launch.template operator()<2>();
      break;
    case 3:
      launch.template operator()<3>();
      break;
    default:
      launch.template operator()<4>();
      break;
  }
  octet::cuda::check_launch("low_rank_gemm");
}

}  // namespace octet::kernels::cuda
