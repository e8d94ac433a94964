#include "octet/kernels/copy_async_cuda.cuh"
#include "octet/kernels/quantize/quantize_epilogue_cuda.cuh"
#include "octet/kernels/rope/rope_cuda.h"

namespace octet::kernels::cuda {
namespace {

// Rotates one element of a pair. The first element needs -sin, the second sin.
__device__ float turn(float mine, float other, float cos, float sin) { return mine * cos + other * sin; }

struct RopeSource : Extent {
  static constexpr int kParts = 1, kBlocks = 3, kAcross = 1;
  BFloat16* x;
  std::int64_t stride;
  int rotated, head_dim, rotary_dim;
  const float* table;
  std::int64_t table_stride;
  const std::int32_t* positions;
  float sign;  // sign of sin for the second half

  __device__ const float* cos_at(int position) const { return table + position * table_stride; }
  __device__ void element(int row, int col, BFloat16 (&made)[1]) const {
    const BFloat16* const at = x + row * stride + col;
    const int half = rotary_dim / 2, in_head = col % head_dim, index = in_head % half;
    const float* const cos = cos_at(positions[row]) + index;
    const float sin = in_head < half ? -sign * cos[half] : sign * cos[half];
    const int other = in_head < half ? half : -half;
    made[0] = col < rotated && in_head < rotary_dim
                  ? to_bf16(turn(static_cast<float>(at[0]), static_cast<float>(at[other]), cos[0], sin))
                  : at[0];
  }
};

// Rotates four pairs.
__device__ void rotate(uint2& first, uint2& second, const float4& cos, const float4& sin) {
  const auto turn_pair = [](unsigned mine, unsigned other, float c0, float c1, float s0, float s1) {
    return to_bf16(turn(low_of(mine), low_of(other), c0, s0), turn(high_of(mine), high_of(other), c1, s1));
  };
  const uint2 a = first, b = second;
  first = {turn_pair(a.x, b.x, cos.x, cos.y, -sin.x, -sin.y), turn_pair(a.y, b.y, cos.z, cos.w, -sin.z, -sin.w)};
  second = {turn_pair(b.x, a.x, cos.x, cos.y, sin.x, sin.y), turn_pair(b.y, a.y, cos.z, cos.w, sin.z, sin.w)};
}
__device__ float4 times(const float4& a, float b) { return {a.x * b, a.y * b, a.z * b, a.w * b}; }

__device__ void gather(const RopeSource& op, const Tile& tile, Bf16Vector (&made)[1][kTileRows]) {
  gather_elements(op, tile, made);
}

// Used if accesses are wide, heads are rotated completely, and tiles contain whole heads.
struct WideRopeSource : RopeSource {};

constexpr int kTileVectors = kTile / kVector;
constexpr int kAcross = 6;  // tiles per block

// The part of the table that a thread needs for all tiles of its rows. The two halves of a head
// are in different lanes. The lower lane rotates the first four columns of both vectors
// and the upper lane the last four, so each lane needs only half of their cos and sin.
struct Turns {
  float4 cos[kTileRows], sin[kTileRows];
  int lanes, from;  // distance to the lane of the other half; the thread's first columns, in units of 8 bytes
  bool upper;

  __device__ Turns(const RopeSource& op, const Tile& tile) : lanes(op.head_dim / 2 / kVector), upper(tile.vector() & lanes) {
    from = 2 * (tile.vector() - (upper ? lanes : 0)) + upper;
    const int index = tile.vector() % lanes * kVector + (upper ? kVector / 2 : 0);
#pragma unroll
    for (int i = 0; i < kTileRows; ++i) {
      const float* const at = op.cos_at(tile.row(i) < op.rows ? op.positions[tile.row(i)] : 0) + index;
      cos[i] = *reinterpret_cast<const float4*>(at);
      sin[i] = times(*reinterpret_cast<const float4*>(at + op.head_dim / 2), op.sign);
    }
  }
  // The thread's vector of a row in shared memory, rotated.
  __device__ Bf16Vector turned(const Bf16Vector* row, int i) const {
    const auto* const at = reinterpret_cast<const uint2*>(row) + from;
    uint2 first = at[0], second = at[2 * lanes];
    rotate(first, second, cos[i], sin[i]);
    const uint2 sent = upper ? first : second;
    const uint2 got = {__shfl_xor_sync(kAllLanes, sent.x, lanes), __shfl_xor_sync(kAllLanes, sent.y, lanes)};
    return upper ? Bf16Vector{{{got.x, got.y, second.x, second.y}}} : Bf16Vector{{{first.x, first.y, got.x, got.y}}};
  }
};

// Each block processes kAcross adjacent tiles and loads the next tile to shared memory while it processes one. A warp reads only
// rows that it has loaded itself.
template <class Epilogue>
__global__ void __launch_bounds__(kTileThreads, 2) rope_tiles(const WideRopeSource op, const Epilogue epilogue, const BlockGrid grid) {
  extern __shared__ Bf16Vector stage[];  // [kTile][kTileVectors]
  __shared__ typename Epilogue::Shared shared;
  Tile tile{.row0 = grid.row_from_end() * kTile,
            .col0 = grid.col() * kAcross * kTile,
            .rows = op.rows,
            .cols = op.cols};
  const int end = min(op.cols, tile.col0 + kAcross * kTile), rows_left = op.rows - tile.row(0);
  const auto row_of = [](int i) { return i / 4 * 8 + i % 4; };  // relative to the thread's first row
  Bf16Vector* const rows = stage + (tile.row(0) - tile.row0) * kTileVectors;
  const BFloat16* const x = op.x + tile.row(0) * op.stride;
  const auto fetch = [&](int col) {
#pragma unroll
    for (int i = 0; i < kTileRows; ++i) {
      if (row_of(i) < rows_left && col < end) {
        Bf16Vector* const to = rows + row_of(i) * kTileVectors + tile.vector();
        copy_async(to, x + row_of(i) * op.stride + col);
      }
    }
    end_copies();
  };
  fetch(tile.col());
  const typename Epilogue::State state = epilogue.begin(0);
  const Turns turns(op, tile);
#pragma unroll 1
  for (; tile.col0 < end; tile.col0 += kTile) {
    wait_for_copies<0>();
    __syncwarp();
    Bf16Vector made[kTileRows];
#pragma unroll
    for (int i = 0; i < kTileRows; ++i) {
      const Bf16Vector* const row = rows + row_of(i) * kTileVectors;
      made[i] = tile.col0 < op.rotated ? turns.turned(row, i) : Bf16Vector{};
      if (tile.col() >= op.rotated) made[i] = row[tile.vector()];
      if (row_of(i) >= rows_left || tile.col() >= end) made[i] = {};
    }
    __syncwarp();
    fetch(tile.col() + kTile);
    epilogue.finish(tile, made, state, shared);
    __syncthreads();
  }
}

template <class Epilogue>
void launch_tiles(Stream& stream, const WideRopeSource& op, const Epilogue& epilogue) {
  constexpr std::size_t kBytes = kTile * kTileVectors * sizeof(Bf16Vector);
  const BlockGrid grid(op.rows, kTile, op.cols, kTile * kAcross);
  octet::cuda::check(
      cudaFuncSetAttribute(rope_tiles<Epilogue>, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(kBytes)),
      "cudaFuncSetAttribute");
  rope_tiles<<<grid.blocks(), kTileThreads, kBytes, octet::cuda::native_stream(stream)>>>(op, epilogue, grid);
  octet::cuda::check_launch("rope_tiles");
}

// Rotation in place. A thread processes both halves of its pairs.
constexpr int kThreads = 256, kRows = 4, kRowThreads = kThreads / kRows;

__global__ void __launch_bounds__(kThreads) rope_kernel(const RopeSource op) {
  const int row = static_cast<int>(blockIdx.x) * kRows + static_cast<int>(threadIdx.x) / kRowThreads;
  if (row >= op.rows) return;
  const int half = op.rotary_dim / 2, width = op.wide ? kVector : 1, per_head = half / width;
  const float* const cos = op.cos_at(op.positions[row]);
  BFloat16* const x = op.x + row * op.stride;
  for (int i = static_cast<int>(threadIdx.x) % kRowThreads; i < op.rotated / op.head_dim * per_head; i += kRowThreads) {
    const int index = i % per_head * width;
    BFloat16* const at = x + i / per_head * op.head_dim + index;
    if (op.wide) {
      const auto* const c = reinterpret_cast<const float4*>(cos + index);
      const auto* const s = reinterpret_cast<const float4*>(cos + half + index);
      const Bf16Vector a = load_vector(at), b = load_vector(at + half);
      uint2 first[] = {{a.parts[0].x, a.parts[0].y}, {a.parts[0].z, a.parts[0].w}},
            second[] = {{b.parts[0].x, b.parts[0].y}, {b.parts[0].z, b.parts[0].w}};
      for (int k = 0; k < 2; ++k) rotate(first[k], second[k], c[k], times(s[k], op.sign));
      store_vector(at, {{{first[0].x, first[0].y, first[1].x, first[1].y}}});
      store_vector(at + half, {{{second[0].x, second[0].y, second[1].x, second[1].y}}});
    } else {
      const float a = static_cast<float>(at[0]), b = static_cast<float>(at[half]), c = cos[index],
                  s = op.sign * cos[half + index];
      at[0] = to_bf16(turn(a, b, c, -s));
      at[half] = to_bf16(turn(b, a, c, s));
    }
  }
}

}  // namespace

void rope(Stream& stream, const Rope& op, float* amaxes) {
  require(op.x.dtype == DType::bf16, "rope: activations on CUDA are BF16, got ", name_of(op.x.dtype));
  if (op.x.rows() == 0) return;
  const Extent extent{.rows = static_cast<int>(op.x.rows()),
                      .cols = static_cast<int>(op.x.cols()),
                      .wide = rows_are_aligned(op.x) && rows_are_aligned(op.table) && op.rotary_dim % (2 * kVector) == 0 &&
                              op.head_dim % kVector == 0};
  RopeSource source{extent,
                    op.x.as<BFloat16>(),
                    op.x.row_stride,
                    static_cast<int>(op.rotated),
                    static_cast<int>(op.head_dim),
                    static_cast<int>(op.rotary_dim),
                    op.table.as<float>(),
                    op.table.row_stride,
                    op.positions.as<std::int32_t>(),
                    op.direction == Rope::Direction::forward ? 1.0f : -1.0f};
  if (op.codes) {
    if (source.wide && op.rotary_dim == op.head_dim && kTile % op.head_dim == 0) {
      const WideRopeSource wide{source};
      return write_codes(stream, wide, wide, op.codes, amaxes);
    }
    return write_codes(stream, source, source, op.codes, amaxes);
  }
  rope_kernel<<<static_cast<unsigned>(ceil_div(extent.rows, kRows)), kThreads, 0, octet::cuda::native_stream(stream)>>>(source);
  octet::cuda::check_launch("rope");
}

}  // namespace octet::kernels::cuda
