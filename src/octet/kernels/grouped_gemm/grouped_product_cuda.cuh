// Grouped products on Hopper (sm_90a), in the form that CUTLASS calls persistent and warp-specialised: a producer warp copies
// tiles of both operands to shared memory with TMA, and two warpgroups multiply them with wgmma (PTX ISA 8.x, "Asynchronous
// Warpgroup Level Matrix Instructions"). Two more warps fetch the tiles of D to which products are added, and store the sums, so
// that no warpgroup that multiplies waits for device memory. Which rows belong to a group is read from there.
//
// A block of threads computes tiles of D of 128 x 256. K is summed in steps of 128 bytes. Precise accumulation adds the sum of
// each step in FP32 registers, because Hopper's tensor cores keep fewer bits of an FP8 sum (DeepSeek-AI, DeepSeek-V3 Technical
// Report, 2024, section 3.3.2). Scales of blocks are applied to the same sums.
#pragma once

#include <cuda.h>

#include "octet/kernels/grouped_gemm/pairs_cuda.cuh"
#include "octet/kernels/grouped_gemm/wgmma_cuda.cuh"

namespace octet::kernels::cuda {

constexpr int kM = 128, kN = 256;          // a tile of D
constexpr int kHalf = 128;                 // columns that a wgmma computes
constexpr int kStepBytes = kSwizzleBytes;  // of K that are copied at a time: the width of the swizzled tile of shared memory
constexpr int kWarpgroup = 128;            // threads
constexpr int kConsumers = 2;              // warpgroups, with kM / 2 rows each
constexpr int kThreads = (1 + kConsumers) * kWarpgroup;
constexpr int kWarpgroupRows = kM / kConsumers;
constexpr int kBoxBytes = kWarpgroupRows * kSwizzleBytes;  // what TMA copies of D at a time
constexpr int kPartBytes = 2 * kBoxBytes;                  // of a warpgroup's rows of D, in a buffer of shared memory

enum class Scaling : std::uint8_t {
  none,    // BF16
  tensor,  // one scale of A and of B for each group
  rows,    // one for each row of A, and of B
  blocks,  // one for each row of A, and of B or 128 rows of B, and 128 of K
};

template <Kind kOperands, bool kAlongM, bool kBFirstDim, Scaling kScales, bool kIsPrecise, class Result>
struct Variant {
  static constexpr Kind kKind = kOperands;
  static constexpr bool kGroupsAlongM = kAlongM;
  // Whether M (or N) comes first in memory, and not K.
  static constexpr bool kAFirst = kOperands == Kind::bf16 && !kAlongM, kBFirst = kBFirstDim;
  static constexpr Scaling kScaling = kScales;
  static constexpr bool kPrecise = kIsPrecise;
  using Out = Result;
  static constexpr int kHalves = kN / kHalf;
  static constexpr int kElement = kOperands == Kind::bf16 ? 2 : 1;
  static constexpr int kStep = kStepBytes / kElement;
  static constexpr int kInstruction = 32 / kElement;  // K of a wgmma
  static constexpr int kABytes = kM * kStepBytes, kBBytes = kN * kStepBytes;
  // Products along K, gradients of weights, are mostly added to D. A second buffer lets a part arrive while another is written.
  static constexpr int kStages = kAlongM ? 4 : 3, kBuffers = kAlongM ? 1 : 2;
  static constexpr int kBoxColumns = kSwizzleBytes / static_cast<int>(sizeof(Result)), kPartColumns = 2 * kBoxColumns;
  static constexpr int kParts = kN / kPartColumns;
};

struct Product {
  CUtensorMap a, b, d;        // b: along K; d: along M
  const CUtensorMap* maps_b;  // along M: of each group
  const CUtensorMap* maps_d;  // along K: of each group
  const float* const* scales_b;
  const float* scales_a;
  const float* scales_b_along_k;
  const std::int32_t *counts, *first, *tiles;
  int groups, m, n, k;  // along K: k is not used
  int rows;             // R
  bool accumulate;
  float factor;   // with Scaling::none
  bool scalar_b;  // one scale for all of B_g, with Scaling::rows
};

// A tile of D.
struct Place {
  int group, row, column;  // row and column in D, or along M in the D of all rows
  int k, steps;            // the first row of the group along K; steps of K
};

template <class V>
__device__ int tiles_of(const Product& p) {
  const int across = (p.n + kN - 1) / kN;
  if constexpr (V::kGroupsAlongM) return p.first[p.groups] / kM * across;
  return p.groups * ((p.m + kM - 1) / kM) * across;
}

// Tiles of D that run at the same time should share what they read, because the second-level cache holds only a part of the
// operands: of up to kBand tiles below each other, those in the same column follow one another.
constexpr int kBand = 16;
struct Cell {
  int down, across;
};
__device__ Cell cell_of(int tile, int down, int across) {
  const int band = tile / (kBand * across), first = band * kBand, height = min(kBand, down - first);
  const int within = tile - first * across;
  return {first + within % height, within / height};
}

template <class V>
__device__ Place place_of(const Product& p, int tile) {
  const int across = (p.n + kN - 1) / kN;
  if constexpr (V::kGroupsAlongM) {
    const Cell cell = cell_of(tile, p.first[p.groups] / kM, across);
    return {.group = p.tiles[cell.down],
            .row = cell.down * kM,
            .column = cell.across * kN,
            .k = 0,
            .steps = (p.k + V::kStep - 1) / V::kStep};
  } else {
    const int down = (p.m + kM - 1) / kM, group = tile / (across * down);
    const Cell cell = cell_of(tile - group * across * down, down, across);
    return {.group = group,
            .row = cell.down * kM,
            .column = cell.across * kN,
            .k = p.first[group],
            .steps = (p.counts[group] + V::kStep - 1) / V::kStep};
  }
}

// The barriers of a buffer for a part of D. A warpgroup may write the buffer once it is open. If products are added to D, the buffer
// then holds that part.
struct PartBarriers {
  Barrier open, written;
};

template <class V>
struct Shared {
  alignas(1024) std::uint8_t a[V::kStages][V::kABytes];
  alignas(1024) std::uint8_t b[V::kStages][V::kBBytes];
  alignas(1024) std::uint8_t d[kConsumers][V::kBuffers][kPartBytes];
  Barrier full[V::kStages], empty[V::kStages];
  PartBarriers parts[kConsumers][V::kBuffers];
};

// The stage of a step, or the buffer of a part, and the parity of its barriers.
template <int kCount>
struct Ring {
  int stage = 0, phase = 0;
  __device__ void advance() {
    if (++stage == kCount) {
      stage = 0;
      phase ^= 1;
    }
  }
};

// Copies a tile of `kRows` rows (of M or N) and kStepBytes of K. If the rows come first in memory, it is a stack of boxes of 64
// rows and kStep of K.
template <class V, bool kFirst, int kRows>
__device__ void copy_tile(std::uint8_t* to, const CUtensorMap* map, int row, int k, Barrier& barrier) {
  if constexpr (kFirst) {
#pragma unroll
    for (int i = 0; i < kRows / 64; ++i) copy_box(to + i * 64 * kStepBytes, map, row + i * 64, k, barrier);
  } else {
    copy_box(to, map, k, row, barrier);
  }
}

template <class V>
__device__ void produce(const Product& p, Shared<V>& shared) {
  Ring<V::kStages> ring;
  for (int tile = blockIdx.x; tile < tiles_of<V>(p); tile += gridDim.x) {
    const Place place = place_of<V>(p, tile);
    const CUtensorMap* const b = V::kGroupsAlongM ? p.maps_b + place.group : &p.b;
    for (int step = 0; step < place.steps; ++step, ring.advance()) {
      shared.empty[ring.stage].wait(ring.phase ^ 1);
      Barrier& full = shared.full[ring.stage];
      full.arrive_and_expect(V::kABytes + V::kBBytes);
      const int k = place.k + step * V::kStep;
      copy_tile<V, V::kAFirst, kM>(shared.a[ring.stage], &p.a, place.row, k, full);
      copy_tile<V, V::kBFirst, kN>(shared.b[ring.stage], b, place.column, k, full);
    }
  }
}

// Opens the buffers for a warpgroup's parts of D, and stores those that are written.
template <class V>
__device__ void carry(const Product& p, Shared<V>& shared, int warpgroup) {
  const int tiles = tiles_of<V>(p), first = static_cast<int>(blockIdx.x), step = static_cast<int>(gridDim.x);
  const int parts = first < tiles ? (tiles - first + step - 1) / step * V::kParts : 0;
  // Calls f(map, column, row, memory) for the two boxes of part n.
  const auto for_boxes = [&](int n, auto f) {
    const Place place = place_of<V>(p, first + n / V::kParts * step);
    const CUtensorMap* const map = V::kGroupsAlongM ? &p.d : p.maps_d + place.group;
    std::uint8_t* const memory = shared.d[warpgroup][n % V::kBuffers];
    const int column = place.column + n % V::kParts * V::kPartColumns, row = place.row + warpgroup * kWarpgroupRows;
    f(map, column, row, memory);
    f(map, column + V::kBoxColumns, row, memory + kBoxBytes);
  };
  const auto open = [&](int n) {
    Barrier& barrier = shared.parts[warpgroup][n % V::kBuffers].open;
    if (!p.accumulate) return barrier.arrive();
    barrier.arrive_and_expect(kPartBytes);
    for_boxes(n, [&](const CUtensorMap* map, int column, int row, std::uint8_t* memory) {
      copy_box(memory, map, column, row, barrier);
    });
  };
  for (int n = 0; n < min(parts, V::kBuffers); ++n) open(n);
  for (int n = 0; n < parts; ++n) {
    shared.parts[warpgroup][n % V::kBuffers].written.wait(n / V::kBuffers % 2);
    for_boxes(n, [&](const CUtensorMap* map, int column, int row, const std::uint8_t* memory) {
      store_box(map, column, row, memory);
    });
    wait_until_stores_have_read();
    if (n + V::kBuffers < parts) open(n + V::kBuffers);
  }
}

// The number of a thread's warpgroup among those that multiply. The shuffle tells the compiler that a warp agrees on it, so that
// addresses of shared memory stay in uniform registers.
__device__ int consumer() { return __shfl_sync(~0u, static_cast<int>(threadIdx.x) / kWarpgroup, 0) - 1; }

// What a thread holds of a tile: rows `row` and row + 8, and in each half of the columns the pairs at 8 j + 2 (lane % 4).
struct Lane {
  int row, column;  // in the tile
  __device__ Lane() {
    const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
    row = consumer() * kWarpgroupRows + thread / 32 * 16 + thread % 32 / 4;
    column = thread % 4 * 2;
  }
};

// Multiplies one step for kCount halves of the columns from `first` on. The sums begin with it if `add` is 0.
template <class V, int kCount>
__device__ void multiply_step(const Shared<V>& shared, int stage, int first, float (&sums)[kCount][64], int add) {
  constexpr int kBox = 64 * kStepBytes;
  const std::uint64_t a = descriptor(shared_address(shared.a[stage]) + static_cast<std::uint32_t>(consumer() * kBox), kBox);
  const std::uint64_t b = descriptor(shared_address(shared.b[stage]) + static_cast<std::uint32_t>(first * 2 * kBox), kBox);
#pragma unroll
  for (int half = 0; half < kCount; ++half) fence_sums(sums[half]);
  begin_products();
#pragma unroll
  for (int i = 0; i < kStepBytes / 32; ++i) {
    // K comes first: 32 bytes further in each row. Otherwise as many rows of 128 bytes.
    const int of_a = i * (V::kAFirst ? V::kInstruction * kStepBytes : 32);
    const int of_b = i * (V::kBFirst ? V::kInstruction * kStepBytes : 32);
#pragma unroll
    for (int half = 0; half < kCount; ++half) {
      multiply_add<V::kKind, V::kAFirst, V::kBFirst>(sums[half], moved(a, of_a), moved(b, of_b + half * 2 * kBox), add || i > 0);
    }
  }
  commit_products();
#pragma unroll
  for (int half = 0; half < kCount; ++half) fence_sums(sums[half]);
}

// totals += sums of a step, multiplied by the scales of its blocks.
template <class V>
__device__ void add_step(const Product& p, const Place& place, int step, const Lane& lane, int column, const float (&sums)[64],
                         float (&totals)[64]) {
  if constexpr (V::kScaling == Scaling::blocks) {
    const int block = (place.k + step * V::kStep) / 128, row = place.row + lane.row;
    const std::int64_t rows = V::kGroupsAlongM ? p.rows : p.m;
    const float* const a = p.scales_a + block * rows;
    const float of_rows[2] = {row < rows ? a[row] : 0.0f, row + 8 < rows ? a[row + 8] : 0.0f};
    if constexpr (V::kGroupsAlongM) {
      const float b = p.scales_b[place.group][min(column, p.n - 1) / 128 * ((p.k + 127) / 128) + block];
#pragma unroll
      for (int i = 0; i < 64; ++i) totals[i] = __fmaf_rn(sums[i], of_rows[i / 2 % 2] * b, totals[i]);
    } else {
      const float* const b = p.scales_b_along_k + block * std::int64_t{p.n} + column + lane.column;
#pragma unroll
      for (int j = 0; j < 16; ++j) {
        const bool inside = column + lane.column + j * 8 < p.n;  // N is a multiple of 16
        const float2 of_columns = inside ? *reinterpret_cast<const float2*>(b + j * 8) : float2{0.0f, 0.0f};
        totals[4 * j] = __fmaf_rn(sums[4 * j], of_rows[0] * of_columns.x, totals[4 * j]);
        totals[4 * j + 1] = __fmaf_rn(sums[4 * j + 1], of_rows[0] * of_columns.y, totals[4 * j + 1]);
        totals[4 * j + 2] = __fmaf_rn(sums[4 * j + 2], of_rows[1] * of_columns.x, totals[4 * j + 2]);
        totals[4 * j + 3] = __fmaf_rn(sums[4 * j + 3], of_rows[1] * of_columns.y, totals[4 * j + 3]);
      }
    }
  } else {
#pragma unroll
    for (int i = 0; i < 64; ++i) totals[i] += sums[i];
  }
}

// The scales of a thread's two rows and of its pairs of columns, for tiles that span all of K.
template <class V>
struct Scales {
  float of_rows[2] = {1.0f, 1.0f};
  const float* of_columns = nullptr;
  float2 same = {1.0f, 1.0f};
  float factor;

  __device__ Scales(const Product& p, const Place& place, int row) : factor(p.factor) {
    if (place.steps == 0) return;  // a group without rows has no scales
    if constexpr (V::kScaling == Scaling::tensor) {
      of_rows[0] = of_rows[1] = p.scales_a[place.group];
      same.x = same.y = V::kGroupsAlongM ? *p.scales_b[place.group] : p.scales_b_along_k[place.group];
    } else if constexpr (V::kScaling == Scaling::rows) {
      const int rows = V::kGroupsAlongM ? p.rows : p.m;
      const float* const a = p.scales_a + (V::kGroupsAlongM ? 0 : place.group * std::int64_t{p.m});
      of_rows[0] = row < rows ? a[row] : 0.0f;
      of_rows[1] = row + 8 < rows ? a[row + 8] : 0.0f;
      of_columns = V::kGroupsAlongM ? p.scales_b[place.group] : p.scales_b_along_k + place.group * std::int64_t{p.n};
      if (p.scalar_b) {
        same.x = same.y = *of_columns;
        of_columns = nullptr;
      }
    }
  }
  __device__ float2 of_pair(int column) const {
    return of_columns ? *reinterpret_cast<const float2*>(of_columns + column) : same;
  }
  // Multiplies a pair of row i by the scales of its columns.
  __device__ float2 apply(int i, float2 columns, float x, float y) const {
    if constexpr (V::kScaling == Scaling::tensor || V::kScaling == Scaling::rows) {
      return {x * of_rows[i] * columns.x, y * of_rows[i] * columns.y};
    }
    return {x * factor, y * factor};
  }
};

// Applies the scales, and writes a warpgroup's part of a tile to its buffer, or adds it to what the buffer holds.
template <class V>
__device__ void write_part(const Product& p, const Place& place, const Scales<V>& scales, const Lane& lane, int part,
                           const float (&totals)[V::kHalves][64], std::uint8_t* buffer) {
  using Pair = PairOf<typename V::Out>;
  constexpr int kPairBytes = static_cast<int>(sizeof(Pair)), kPairs = V::kPartColumns / 8, kBatch = kPairs / 4;
  // Row r swaps its pieces of 16 bytes: piece c is at c ^ r % 8, as the tensor map says. Rows r and r + 8 swap alike.
  int swap = lane.row % 8 * 16;
  asm volatile("" : "+r"(swap));  // keeps addresses from being computed before all tiles, and held in registers
  const int own = lane.column / 2 * kPairBytes;
  std::uint8_t* const rows = buffer + lane.row % kWarpgroupRows * kSwizzleBytes;
  const auto pair_at = [&](int i, int j) -> Pair& {
    const int byte = j * 4 * kPairBytes, box = byte / kSwizzleBytes * kBoxBytes;
    return *reinterpret_cast<Pair*>(rows + ((byte % kSwizzleBytes + own) ^ swap) + box + i * 8 * kSwizzleBytes);
  };
  float2 columns[kPairs];  // all are read before the first write, so that they are under way together
#pragma unroll
  for (int j = 0; j < kPairs; ++j) {
    columns[j] = scales.of_pair(min(place.column + part * V::kPartColumns + j * 8 + lane.column, p.n - 2));
  }
#pragma unroll
  for (int first = 0; first < kPairs; first += kBatch) {
    Pair before[2][kBatch];
    if (p.accumulate) {
#pragma unroll
      for (int n = 0; n < 2 * kBatch; ++n) before[n % 2][n / 2] = pair_at(n % 2, first + n / 2);
    }
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const int column = part * V::kPartColumns + (first + j) * 8, half = column / kHalf, at = column % kHalf / 2;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float2 x = scales.apply(i, columns[first + j], totals[half][at + 2 * i], totals[half][at + 2 * i + 1]);
        pair_at(i, first + j) = narrow<Pair>(p.accumulate ? sum_of(widen(before[i][j]), x) : x);
      }
    }
  }
}

template <class V>
__device__ void clear(float (&sums)[V::kHalves][64]) {
#pragma unroll
  for (int half = 0; half < V::kHalves; ++half) {
    for (float& value : sums[half]) value = 0.0f;
  }
}

// Sums a tile in the tensor cores alone.
template <class V>
__device__ void sum_fast(Shared<V>& shared, const Place& place, Ring<V::kStages>& ring, float (&sums)[V::kHalves][64]) {
  const bool elected = threadIdx.x % kWarpgroup == 0;
  Ring<V::kStages> done = ring;
  if (place.steps == 0) clear<V>(sums);
  for (int step = 0; step < place.steps; ++step, ring.advance()) {
    shared.full[ring.stage].wait(ring.phase);
    multiply_step<V>(shared, ring.stage, 0, sums, step > 0);
    if (step == 0) continue;
    wait_for_products<1>();  // those of the step before have ended
    if (elected) shared.empty[done.stage].arrive();
    done.advance();
  }
  wait_for_products<0>();
  if (place.steps > 0 && elected) shared.empty[done.stage].arrive();
#pragma unroll
  for (int half = 0; half < V::kHalves; ++half) fence_sums(sums[half]);
}

// Sums each step in the tensor cores, and the steps in FP32 registers. Meanwhile the other warpgroup multiplies.
template <class V>
__device__ void sum_precisely(const Product& p, Shared<V>& shared, const Place& place, const Lane& lane, Ring<V::kStages>& ring,
                              float (&totals)[V::kHalves][64]) {
  const bool elected = threadIdx.x % kWarpgroup == 0;
  clear<V>(totals);
  for (int step = 0; step < place.steps; ++step, ring.advance()) {
    shared.full[ring.stage].wait(ring.phase);
#pragma unroll
    for (int half = 0; half < V::kHalves; ++half) {
      float sums[1][64];
      multiply_step<V>(shared, ring.stage, half, sums, 0);
      wait_for_products<0>();
      fence_sums(sums[0]);
      if (elected && half + 1 == V::kHalves) shared.empty[ring.stage].arrive();
      add_step<V>(p, place, step, lane, place.column + half * kHalf, sums[0], totals[half]);
    }
  }
}

template <class V>
__device__ void consume(const Product& p, Shared<V>& shared) {
  const Lane lane;
  const int warpgroup = consumer();
  Ring<V::kStages> ring;
  Ring<V::kBuffers> parts;
  const int tiles = tiles_of<V>(p);
  if (blockIdx.x >= tiles) return;
  Place place = place_of<V>(p, blockIdx.x);
  for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const Scales<V> scales(p, place, place.row + lane.row);  // read before the sums are ready, so that nobody waits for them
    float sums[V::kHalves][64];
    if constexpr (V::kPrecise) {
      sum_precisely<V>(p, shared, place, lane, ring, sums);
    } else {
      sum_fast<V>(shared, place, ring, sums);
    }
    const Place next = place_of<V>(p, min(tile + static_cast<int>(gridDim.x), tiles - 1));  // read while the tile is written
#pragma unroll
    for (int part = 0; part < V::kParts; ++part, parts.advance()) {
      PartBarriers& barriers = shared.parts[warpgroup][parts.stage];
      barriers.open.wait(parts.phase);
      write_part<V>(p, place, scales, lane, part, sums, shared.d[warpgroup][parts.stage]);
      fence_for_copies();
      barriers.written.arrive();
    }
    place = next;
  }
}

template <class V>
__global__ void __launch_bounds__(kThreads, 1) grouped_product(const __grid_constant__ Product p) {
  extern __shared__ std::uint8_t memory[];
  Shared<V>& shared = *reinterpret_cast<Shared<V>*>((reinterpret_cast<std::uintptr_t>(memory) + 1023) / 1024 * 1024);
  if (threadIdx.x == 0) {
    for (int i = 0; i < V::kStages; ++i) {
      shared.full[i].init(1);
      shared.empty[i].init(kConsumers);
    }
    for (int i = 0; i < kConsumers * V::kBuffers; ++i) {
      PartBarriers& part = shared.parts[i / V::kBuffers][i % V::kBuffers];
      part.open.init(1);
      part.written.init(kWarpgroup);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    fence_for_copies();
  }
  __syncthreads();
  if (threadIdx.x < kWarpgroup) {
    give_registers<40>();
    const int warp = static_cast<int>(threadIdx.x) / 32;
    if (threadIdx.x == 0) produce<V>(p, shared);
    if (threadIdx.x % 32 == 0 && warp >= 1 && warp <= kConsumers) carry<V>(p, shared, warp - 1);
  } else {
    take_registers<232>();
    consume<V>(p, shared);
  }
}

}  // namespace octet::kernels::cuda
