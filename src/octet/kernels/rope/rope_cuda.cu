#include "octet/kernels/rope/rope_cuda.h"

#include "octet/kernels/quantize/tails_cuda.cuh"

namespace octet::kernels::cuda {
namespace {

// The first of a pair with -sin, the second with sin.
__device__ float turn(float mine, float other, float cos, float sin) { return mine * cos + other * sin; }

struct RopeSource : Extent {
  static constexpr int kParts = 1, kAhead = 2, kBlocks = 3, kAcross = 4;  // the rows of the table stay in the first cache
  std::uint16_t* x;
  std::int64_t stride;
  int rotated, head_dim;
  const float* table;
  std::int64_t table_stride;
  const std::int32_t* positions;
  float sign;  // of sin in the second half

  __device__ const float* cos_at(int position) const { return table + position * table_stride; }
  __device__ void element(int row, int col, std::uint16_t (&made)[1]) const {
    const std::uint16_t* const at = x + row * stride + col;
    const int half = head_dim / 2, in_head = col % head_dim, index = in_head % half;
    const float* const cos = cos_at(positions[row]) + index;
    const float sin = in_head < half ? -sign * cos[half] : sign * cos[half];
    const int other = in_head < half ? half : -half;
    made[0] = col < rotated ? to_bf16(turn(value_of(at[0]), value_of(at[other]), cos[0], sin)) : at[0];
  }
};

__device__ Chunk load_past_cache(const std::uint16_t* at) {
  Chunk chunk;
  asm("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
      : "=r"(chunk.x), "=r"(chunk.y), "=r"(chunk.z), "=r"(chunk.w)
      : "l"(at));
  return chunk;
}

// Four pairs.
__device__ void rotate(uint2& first, uint2& second, const float4& cos, const float4& sin, float sign) {
  const auto turn_pair = [](unsigned mine, unsigned other, float c0, float c1, float s0, float s1) {
    return to_bf16(turn(low_of(mine), low_of(other), c0, s0), turn(high_of(mine), high_of(other), c1, s1));
  };
  const uint2 a = first, b = second;
  first = {turn_pair(a.x, b.x, cos.x, cos.y, -sign * sin.x, -sign * sin.y),
           turn_pair(a.y, b.y, cos.z, cos.w, -sign * sin.z, -sign * sin.w)};
  second = {turn_pair(b.x, a.x, cos.x, cos.y, sign * sin.x, sign * sin.y),
            turn_pair(b.y, a.y, cos.z, cos.w, sign * sin.z, sign * sin.w)};
}

// Where heads are wide and a tile holds whole ones, the two halves of a head are in lanes some way apart. The lower lane turns
// the first four columns of both chunks, the upper lane the last four, so that each needs half of their cos and sin.
__device__ void gather(const RopeSource& op, const Tile& tile, Chunk (&made)[1][kTileRows]) {
  if (!op.wide) return gather_elements(op, tile, made);
  const int col = tile.col(), lanes = op.head_dim / 2 / kChunk;
  const bool upper = tile.chunk() & lanes;
  const int index = tile.chunk() % lanes * kChunk + (upper ? kChunk / 2 : 0);
#pragma unroll
  for (int i = 0; i < kTileRows; ++i) {
    if (tile.row(i) < op.rows && col < op.cols) made[0][i] = load_past_cache(op.x + tile.row(i) * op.stride + col);
  }
  if (tile.col0 >= op.rotated) return;
  const int row_of_lane = tile.row(tile.lane() % kTileRows), position = row_of_lane < op.rows ? op.positions[row_of_lane] : 0;
  const auto swap = [&](uint2 mine) {
    return uint2{__shfl_xor_sync(kAllLanes, mine.x, lanes), __shfl_xor_sync(kAllLanes, mine.y, lanes)};
  };
#pragma unroll
  for (int ahead = 0; ahead < kTileRows; ahead += RopeSource::kAhead) {
    float4 cos[RopeSource::kAhead], sin[RopeSource::kAhead];
#pragma unroll
    for (int i = 0; i < RopeSource::kAhead; ++i) {
      const float* const at = op.cos_at(__shfl_sync(kAllLanes, position, (tile.lane() & 16) | (ahead + i))) + index;
      cos[i] = *reinterpret_cast<const float4*>(at);
      sin[i] = *reinterpret_cast<const float4*>(at + op.head_dim / 2);
    }
#pragma unroll
    for (int i = 0; i < RopeSource::kAhead; ++i) {
      Chunk& chunk = made[0][ahead + i];
      const uint2 low = {chunk.x, chunk.y}, high = {chunk.z, chunk.w};
      const uint2 kept = upper ? high : low, got = swap(upper ? low : high);
      uint2 first = upper ? got : kept, second = upper ? kept : got;
      rotate(first, second, cos[i], sin[i], op.sign);
      const uint2 own = upper ? second : first, back = swap(upper ? first : second);
      if (col >= op.rotated) continue;
      chunk = upper ? Chunk{back.x, back.y, own.x, own.y} : Chunk{own.x, own.y, back.x, back.y};
    }
  }
}

// In place: a thread takes both halves of its pairs.
constexpr int kThreads = 256, kRows = 4, kRowThreads = kThreads / kRows;

__global__ void __launch_bounds__(kThreads) rope_kernel(const RopeSource op) {
  const int row = static_cast<int>(blockIdx.x) * kRows + static_cast<int>(threadIdx.x) / kRowThreads;
  if (row >= op.rows) return;
  const int half = op.head_dim / 2, width = op.wide ? kChunk : 1, per_head = half / width;
  const float* const cos = op.cos_at(op.positions[row]);
  std::uint16_t* const x = op.x + row * op.stride;
  for (int i = static_cast<int>(threadIdx.x) % kRowThreads; i < op.rotated / op.head_dim * per_head; i += kRowThreads) {
    const int index = i % per_head * width;
    std::uint16_t* const at = x + i / per_head * op.head_dim + index;
    if (op.wide) {
      const auto* const c = reinterpret_cast<const float4*>(cos + index);
      const auto* const s = reinterpret_cast<const float4*>(cos + half + index);
      const Chunk a = load_chunk(at), b = load_chunk(at + half);
      uint2 first[] = {{a.x, a.y}, {a.z, a.w}}, second[] = {{b.x, b.y}, {b.z, b.w}};
      for (int k = 0; k < 2; ++k) rotate(first[k], second[k], c[k], s[k], op.sign);
      *reinterpret_cast<Chunk*>(at) = {first[0].x, first[0].y, first[1].x, first[1].y};
      *reinterpret_cast<Chunk*>(at + half) = {second[0].x, second[0].y, second[1].x, second[1].y};
    } else {
      const float a = value_of(at[0]), b = value_of(at[half]), c = cos[index], s = op.sign * cos[half + index];
      at[0] = to_bf16(turn(a, b, c, -s));
      at[half] = to_bf16(turn(b, a, c, s));
    }
  }
}

}  // namespace

void rope(Queue& queue, const Rope& op, float* amaxes) {
  require(op.x.dtype == DType::bf16, "rope: activations on CUDA are BF16, got ", name_of(op.x.dtype));
  if (op.x.rows() == 0) return;
  const Extent extent{.rows = static_cast<int>(op.x.rows()),
                      .cols = static_cast<int>(op.x.cols()),
                      .wide = is_wide(op.x) && is_wide(op.table) && op.head_dim % (2 * kChunk) == 0};
  RopeSource source{extent,
                          reinterpret_cast<std::uint16_t*>(op.x.as<BFloat16>()),
                          op.x.row_stride,
                          static_cast<int>(op.rotated),
                          static_cast<int>(op.head_dim),
                          op.table.as<float>(),
                          op.table.row_stride,
                          op.positions.as<std::int32_t>(),
                          op.direction == Rope::Direction::forward ? 1.0f : -1.0f};
  if (op.codes) {
    source.wide = source.wide && kTile % op.head_dim == 0;
    return write_codes(queue, source, source, op.codes, amaxes);
  }
  rope_kernel<<<static_cast<unsigned>(ceil_div(extent.rows, kRows)), kThreads, 0, octet::cuda::stream_of(queue)>>>(source);
  octet::cuda::check_launch("rope");
}

}  // namespace octet::kernels::cuda
