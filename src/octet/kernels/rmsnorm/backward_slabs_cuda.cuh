// RMSNorm's backward pass that also writes codes and moves every byte once. A cluster of blocks processes slabs of 128 rows.
// Each block has several adjacent tiles of a slab. It keeps their new gx in shared memory until it writes the codes; gy and x
// pass through a ring buffer. Each warp processes its rows on its own, with one or two vectors per lane. It sends its part of a
// row's sum to the corresponding warps of the cluster's other blocks while it processes the row before. gy and x of the next
// slab are loaded while codes are written.
#pragma once

#include <cooperative_groups.h>

#include "octet/kernels/copy_async_cuda.cuh"
#include "octet/kernels/quantize/tiles_cuda.cuh"
#include "octet/kernels/rmsnorm/backward_row_cuda.cuh"

namespace octet::kernels::cuda {

constexpr int kMostSlabBlocks = 16;   // per cluster; more than 8 requires an attribute at launch
constexpr int kFewestSlabBlocks = 8;  // shorter rows are faster in two kernels
// A cluster runs within one GPC, a group of multiprocessors. These two numbers fix how many clusters share the slabs, and with it
// the order in which gweight is summed. They are therefore the same on every GPU and must not become a question to the device:
// otherwise bits would depend on the GPU. They are those of an H100 or H200, of which seven GPCs have 16 multiprocessors or more.
// On a GPU with less room, the clusters that do not fit start when others have ended. A GPU without a GPC that can hold a whole
// cluster refuses the launch.
constexpr int kGroups = 7, kGroupProcessors = 16;

// How a matrix is divided among clusters and blocks.
struct Slabs : Extent {
  int slabs = 0, blocks = 1, clusters = 1;
  int tiles = 1;  // per block; a power of two, so that they form a branch of the row's tree of sums

  explicit Slabs(const Extent& extent) : Extent(extent), slabs(static_cast<int>(ceil_div(extent.rows, kTile))) {
    const int across = static_cast<int>(ceil_div(cols, kTile));
    tiles = across <= 2 * kMostSlabBlocks ? 2 : 4;
    blocks = static_cast<int>(ceil_div(across, tiles));
    clusters = std::min(slabs, kGroups * (room() / blocks));
  }
  // Whether the clusters occupy most of the multiprocessors.
  bool fit() const {
    return wide && kFewestSlabBlocks <= blocks && blocks <= kMostSlabBlocks && room() / blocks * blocks * 8 >= room() * 7;
  }
  // The number of blocks that a GPC can run at once.
  int room() const { return kGroupProcessors * (tiles == 2 ? 2 : 1); }

  __device__ int rank() const { return static_cast<int>(blockIdx.x) % blocks; }
  __device__ int col0() const { return rank() * tiles * kTile; }
};

// Rows that consist of whole vectors.
struct VectorRows {
  BFloat16* at;
  std::int64_t stride;

  VectorRows(const Tensor& x) : at(x.as<BFloat16>()), stride(x.row_stride) {}
  __device__ BFloat16* vector(int row, int col) const { return at + row * stride + col; }
};

struct RmsNormBackwardSlabs : Slabs {
  static constexpr int kParts = 1;
  VectorRows gy, x, weight, gx;
  const float* rstd;
  float* partials;  // of gweight; one row per cluster
};

constexpr int kSlabWarps = kTileThreads / 32;
constexpr int kRowsOfWarp = kTile / kSlabWarps;
constexpr int kRing = 5;   // rows of a warp that are loaded or being loaded
constexpr int kTurns = 4;  // row r + 4 reuses the place of row r: no block is more than two rows ahead of another

template <int kTiles>
struct BackwardShared {
  static constexpr int kVectors = kTiles * kTileVectors;  // per row
  Bf16Vector gx[kTiles][kTile][kTileVectors];             // the epilogue reuses the first tile's memory
  Bf16Vector ring[kRing][kSlabWarps][2][kVectors];        // gy, x
  float dots[kTurns][kSlabWarps][kMostSlabBlocks];
  std::uint64_t told[kTurns][kSlabWarps];
};

// Barriers of the warps of a cluster. A phase ends when its bytes have arrived.
__device__ inline unsigned shared_address(const void* at) { return static_cast<unsigned>(__cvta_generic_to_shared(at)); }
__device__ inline void init_barrier(std::uint64_t* barrier) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(barrier)) : "memory");
}
__device__ inline void fence_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ inline void expect_bytes(std::uint64_t* barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
}
__device__ inline void wait_phase(std::uint64_t* barrier, int parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}\n" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}
// Stores a value at the same address in another block of the cluster, and counts 4 bytes at that block's barrier.
__device__ inline void tell(int block, float* at, std::uint64_t* barrier, float value) {
  asm volatile(
      "{\n"
      ".reg .b32 to, told;\n"
      "mapa.shared::cluster.u32 to, %0, %2;\n"
      "mapa.shared::cluster.u32 told, %1, %2;\n"
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [to], %3, [told];\n"
      "}\n" ::"r"(shared_address(at)),
      "r"(shared_address(barrier)), "r"(block), "r"(__float_as_uint(value))
      : "memory");
}

// Whether blocks of the current device may have the shared memory. GPUs of compute capability 12 have too little.
inline bool has_memory_for(const Slabs& slabs) {
  int device = 0, most = 0;
  octet::cuda::check(cudaGetDevice(&device), "cudaGetDevice");
  octet::cuda::check(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), "cudaDeviceGetAttribute");
  return static_cast<std::size_t>(most) >= (slabs.tiles == 2 ? sizeof(BackwardShared<2>) : sizeof(BackwardShared<4>));
}

template <int kTiles, class Epilogue>
__global__ void __launch_bounds__(kTileThreads, kTiles == 2 ? 2 : 1)
    backward_slabs(const RmsNormBackwardSlabs op, const Epilogue epilogue) {
  using Shared = BackwardShared<kTiles>;
  constexpr int kEach = Shared::kVectors / 32;
  extern __shared__ __align__(128) unsigned char memory[];
  auto& shared = *reinterpret_cast<Shared*>(memory);
  const auto cluster = cooperative_groups::this_cluster();
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const int rank = op.rank(), cluster_of_grid = static_cast<int>(blockIdx.x) / op.blocks;
  // Starts with the last rows, which the previous kernel left in the cache.
  int slab = op.slabs - 1 - cluster_of_grid, row0 = slab * kTile;
  if (lane == 0) {
    for (int turn = 0; turn < kTurns; ++turn) init_barrier(&shared.told[turn][warp]);
    fence_barriers();
  }
  cluster.barrier_arrive();

  // Row r of the warp is row warp + 8 r of the slab. Each lane loads the data that it reads itself, so no barrier is needed.
  const auto row_of = [&](int r) { return warp + r * kSlabWarps; };
  const auto vector_of = [&](int j) { return lane + j * 32; };
  const auto has = [&](int r, int j) { return row0 + row_of(r) < op.rows && op.col0() + vector_of(j) * kVector < op.cols; };
  const auto gx_of = [&](int r, int j) {
    return &shared.gx[vector_of(j) / kTileVectors][row_of(r)][vector_of(j) % kTileVectors];
  };
  const auto fetch_ring = [&](int r) {
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      if (!has(r, j)) continue;
      const int row = row0 + row_of(r), col = op.col0() + vector_of(j) * kVector;
      copy_async(&shared.ring[r % kRing][warp][0][vector_of(j)], op.gy.vector(row, col));
      copy_async(&shared.ring[r % kRing][warp][1][vector_of(j)], op.x.vector(row, col));
    }
  };
  const auto fetch_gx = [&](int r) {
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      if (has(r, j)) copy_async(gx_of(r, j), op.gx.vector(row0 + row_of(r), op.col0() + vector_of(j) * kVector));
    }
  };
  float rstds;  // rstd of the warp's rows, one per lane
  const auto begin_slab = [&] {
#pragma unroll
    for (int r = 0; r < kRing; ++r) {
      fetch_ring(r);
      end_copies();
    }
    const int row = row0 + row_of(lane % kRowsOfWarp);
    rstds = row < op.rows ? op.rstd[row] : 0.0f;
  };
  begin_slab();

  const typename Epilogue::State state = epilogue.begin(0);
  Bf16Vector weights[kEach];
  float shares[kEach][kVector] = {};
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const int col = op.col0() + vector_of(j) * kVector;
    weights[j] = col < op.cols ? load_vector(op.weight.vector(0, col)) : Bf16Vector{};
  }
  cluster.barrier_wait();  // all blocks run and have initialised their barriers

  const auto load = [&](int r, int j, Bf16Vector& gy, Bf16Vector& x) {
    const bool there = has(r, j);
    gy = there ? shared.ring[r % kRing][warp][0][vector_of(j)] : Bf16Vector{};
    x = there ? shared.ring[r % kRing][warp][1][vector_of(j)] : Bf16Vector{};
  };
  const auto tell_dot = [&](int r) {
    const float rstd = __shfl_sync(kAllLanes, rstds, r);
    float dots[kEach];
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      Bf16Vector gy, x;
      load(r, j, gy, x);
      dots[j] = tree_sum<32>(dot_of(gy, x, weights[j], rstd));
    }
    const float dot = tree_sum(dots);
    std::uint64_t* const told = &shared.told[r % kTurns][warp];
    if (lane == 0) expect_bytes(told, op.blocks * 4);
    if (lane < op.blocks) tell(lane, &shared.dots[r % kTurns][warp][rank], told, dot);
  };
#pragma unroll 1
  while (true) {
#pragma unroll
    for (int r = 0; r < kRing; ++r) fetch_gx(r);
    end_copies();
    wait_for_copies<kRing>();
    tell_dot(0);
#pragma unroll 1
    for (int r = 0; r < kRowsOfWarp; ++r) {
      wait_for_copies<kRing - 2>();
      if (r + 1 < kRowsOfWarp) tell_dot(r + 1);
      wait_phase(&shared.told[r % kTurns][warp], r / kTurns % 2);
      const int block = lane % kMostSlabBlocks;
      const float dot = tree_sum<kMostSlabBlocks>(block < op.blocks ? shared.dots[r % kTurns][warp][block] : 0.0f);
      const float mean = dot / static_cast<float>(op.cols), rstd = __shfl_sync(kAllLanes, rstds, r);
      if (r == 0) wait_for_copies<0>();
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        Bf16Vector gy, x;
        load(r, j, gy, x);
        if (!has(r, j)) continue;
        Bf16Vector* const gx = gx_of(r, j);
        Bf16Vector next = *gx;
        add_gradient(gy, x, weights[j], rstd, mean, next, shares[j]);
        *gx = next;
        store_vector(op.gx.vector(row0 + row_of(r), op.col0() + vector_of(j) * kVector), next);
      }
      if (r + kRing < kRowsOfWarp) {
        fetch_ring(r + kRing);
        fetch_gx(r + kRing);
      }
      end_copies();
    }
    const Tile first{.row0 = row0, .col0 = op.col0(), .rows = op.rows, .cols = op.cols};
    const bool last = slab < op.clusters;
    slab -= op.clusters;
    row0 = slab * kTile;
    if (!last) begin_slab();

    __syncthreads();
#pragma unroll 1
    for (int t = 0; t < kTiles; ++t) {
      Tile tile = first;
      tile.col0 += t * kTile;
      if (tile.col0 >= op.cols) break;
      Bf16Vector made[kTileRows];
#pragma unroll
      for (int i = 0; i < kTileRows; ++i) {
        const bool there = tile.row(i) < tile.rows && tile.col() < tile.cols;
        made[i] = there ? shared.gx[t][tile.row(i) - tile.row0][tile.vector()] : Bf16Vector{};
      }
      __syncthreads();
      static_assert(sizeof(typename Epilogue::Shared) <= sizeof(shared.gx[0]));
      epilogue.finish(tile, made, state, *reinterpret_cast<typename Epilogue::Shared*>(shared.gx[0]));
    }
    __syncthreads();
    if (last) break;
  }

  auto* const of_warps = reinterpret_cast<float(*)[Shared::kVectors * kVector]>(shared.ring);
  static_assert(sizeof(float) * kSlabWarps * Shared::kVectors * kVector <= sizeof(shared.ring));
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    auto* const to = reinterpret_cast<float4*>(&of_warps[warp][vector_of(j) * kVector]);
    to[0] = {shares[j][0], shares[j][1], shares[j][2], shares[j][3]};
    to[1] = {shares[j][4], shares[j][5], shares[j][6], shares[j][7]};
  }
  __syncthreads();
  for (int i = thread; i < Shared::kVectors * kVector; i += kTileThreads) {
    const int col = op.col0() + i;
    float sum = of_warps[0][i];
    for (int w = 1; w < kSlabWarps; ++w) sum += of_warps[w][i];
    if (col < op.cols) op.partials[std::int64_t{cluster_of_grid} * op.cols + col] = sum;
  }
}

template <class Kernel, class... Args>
void launch_slabs(Stream& stream, const Slabs& slabs, Kernel* kernel, std::size_t bytes, const Args&... args) {
  using octet::cuda::check;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
        "cudaFuncSetAttribute");
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1), "cudaFuncSetAttribute");
  cudaLaunchAttribute cluster{.id = cudaLaunchAttributeClusterDimension};
  cluster.val.clusterDim = {static_cast<unsigned>(slabs.blocks), 1, 1};
  cudaLaunchConfig_t config{.gridDim = static_cast<unsigned>(slabs.clusters * slabs.blocks),
                            .blockDim = kTileThreads,
                            .dynamicSmemBytes = bytes,
                            .stream = octet::cuda::native_stream(stream),
                            .attrs = &cluster,
                            .numAttrs = 1};
  check(cudaLaunchKernelEx(&config, kernel, args...), "rmsnorm_backward");
}

template <class Epilogue>
void launch_tiles(Stream& stream, const RmsNormBackwardSlabs& op, const Epilogue& epilogue) {
  if (op.tiles == 2) return launch_slabs(stream, op, backward_slabs<2, Epilogue>, sizeof(BackwardShared<2>), op, epilogue);
  launch_slabs(stream, op, backward_slabs<4, Epilogue>, sizeof(BackwardShared<4>), op, epilogue);
}

}  // namespace octet::kernels::cuda
