#include <cuda_runtime.h>

#include <algorithm>
#include <bit>
#include <cub/device/device_radix_sort.cuh>
#include <type_traits>

#include "octet/base/math.h"
#include "octet/device/cuda/cuda.h"
#include "octet/kernels/embedding/embedding_cuda.h"
#include "octet/kernels/vector_cuda.cuh"

namespace octet::kernels::cuda {
namespace {

using octet::cuda::check;
using octet::cuda::check_launch;
using octet::cuda::native_stream;

constexpr int kForwardThreads = 256;
constexpr int kOrderThreads = 256;
constexpr int kWarps = 4;  // per block of the backward kernel
constexpr int kBatch = 8;  // rows of gy that a lane has in flight
constexpr std::uint16_t kNan = 0x7FFF;

// A token outside the vocabulary gives a row of NaN, which makes the loss NaN. A token of another shard gives zeros.
template <int kElements>
__global__ void __launch_bounds__(kForwardThreads)
    forward_kernel(const std::int32_t* tokens, const BFloat16* table, std::int64_t table_stride, std::int64_t rows,
                   std::int64_t first, std::int64_t vocabulary, BFloat16* y, std::int64_t y_stride, std::int64_t width) {
  const std::int64_t t = blockIdx.x, token = tokens[t], row = token - first;
  const bool known = 0 <= row && row < rows, elsewhere = 0 <= token && token < vocabulary;
  const auto* from = reinterpret_cast<const Piece<kElements>*>(table + row * table_stride);
  auto* to = reinterpret_cast<Piece<kElements>*>(y + t * y_stride);
  const int pieces = static_cast<int>(width / kElements);
  for (int i = static_cast<int>(threadIdx.x); i < pieces; i += kForwardThreads) {
    if (known) {
      to[i] = from[i];
    } else {
      for (int j = 0; j < kElements; ++j) reinterpret_cast<BFloat16*>(to + i)[j] = BFloat16::from_bits(elsewhere ? 0 : kNan);
    }
  }
}

// Writes token t as id * 2^32 + t. A stable sort by id then orders the tokens by id and t. Ids count from the table's first row;
// tokens of other shards all get the id after its last row.
__global__ void __launch_bounds__(kOrderThreads)
    order_kernel(const std::int32_t* tokens, std::int64_t count, std::int64_t first, std::int64_t rows, std::uint64_t* order) {
  const std::int64_t t = std::int64_t{blockIdx.x} * kOrderThreads + threadIdx.x;
  if (t >= count) return;
  const std::int64_t row = tokens[t] - first;
  const auto id = static_cast<std::uint64_t>(0 <= row && row < rows ? row : rows);
  order[t] = (id << 32) | static_cast<std::uint64_t>(t);
}

template <class G>
struct Backward {
  const std::uint64_t* order;
  std::int64_t count;
  const BFloat16* gy;
  std::int64_t gy_stride;
  G* gtable;
  std::int64_t gtable_stride;
  std::int64_t vocabulary, width;
};

template <class G>
__device__ void add_to(G* to, const float (&sums)[kVector]) {
  float row[kVector];
  unpack(load_vector(to), row);
  for (int i = 0; i < kVector; ++i) row[i] += sums[i];
  store_packed(to, row);
}
__device__ void add_to(float* to, const float (&sum)[1]) { *to += sum[0]; }
__device__ void add_to(BFloat16* to, const float (&sum)[1]) { *to = to_bf16(static_cast<float>(*to) + sum[0]); }

// One warp for each position of `order` and each 32 * kElements columns. A warp whose position is not the first of an id exits at
// once. The others look at 32 positions of their id at a time, load kBatch rows together and add them one after another.
template <int kElements, class G>
__global__ void __launch_bounds__(32 * kWarps) backward_kernel(const Backward<G> a) {
  const std::int64_t start = blockIdx.x;
  const std::uint64_t id = a.order[start] >> 32;
  if (start > 0 && a.order[start - 1] >> 32 == id) return;
  if (id >= static_cast<std::uint64_t>(a.vocabulary)) return;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t column = (std::int64_t{blockIdx.y} * blockDim.x + threadIdx.x) * kElements;
  const bool active = column < a.width;

  float sums[kElements] = {};
  int run = 32;
  for (std::int64_t first = start; run == 32; first += 32) {
    const std::uint64_t entry = first + lane < a.count ? a.order[first + lane] : ~std::uint64_t{0};
    run = __popc(__ballot_sync(~0u, entry >> 32 == id));  // the entries are sorted, so these are the first `run` lanes
    const auto place = static_cast<std::uint32_t>(entry);
    for (int done = 0; done < run; done += kBatch) {
      Piece<kElements> rows[kBatch];
      for (int b = 0; b < kBatch; ++b) {
        const std::int64_t t = __shfl_sync(~0u, place, done + b);
        if (active && done + b < run) rows[b] = piece_at<kElements>(a.gy + t * a.gy_stride + column);
      }
      for (int b = 0; b < kBatch; ++b) {
        if (!active || done + b >= run) continue;
        float gy[kElements];
        unpack(rows[b], gy);
        for (int i = 0; i < kElements; ++i) sums[i] += gy[i];
      }
    }
  }
  if (active) add_to(a.gtable + static_cast<std::int64_t>(id) * a.gtable_stride + column, sums);
}

// Bytes for `order` (and as much again for a second buffer) and for the
// sort: counters of up to 256 digits per tile of at least 512 tokens.
struct Scratch {
  std::size_t order, sort;
  explicit Scratch(std::int64_t tokens)
      : order(static_cast<std::size_t>(round_up(tokens * std::int64_t{sizeof(std::uint64_t)}, Device::kAlignment))),
        sort(static_cast<std::size_t>(2 * tokens) + (std::size_t{1} << 20)) {}
  std::size_t bytes() const { return 2 * order + sort; }
};

// Sorts the tokens by id and t. The result is in one of the two buffers in `memory`.
const std::uint64_t* sorted(cudaStream_t native, const EmbeddingBackward& op, void* memory) {
  const std::int64_t count = op.tokens.rows();
  const Scratch scratch(count);
  auto* bytes = static_cast<std::uint8_t*>(memory);
  auto* order = reinterpret_cast<std::uint64_t*>(bytes);
  order_kernel<<<static_cast<unsigned>(ceil_div(count, kOrderThreads)), kOrderThreads, 0, native>>>(
      op.tokens.as<std::int32_t>(), count, op.first, op.gtable.rows(), order);
  check_launch("embedding_backward");
  cub::DoubleBuffer<std::uint64_t> buffers(order, reinterpret_cast<std::uint64_t*>(bytes + scratch.order));
  const std::int64_t last = op.vocabulary > 0 ? op.gtable.rows() : op.gtable.rows() - 1;
  const int last_bit = 32 + std::max(1, static_cast<int>(std::bit_width(static_cast<std::uint64_t>(last))));
  std::size_t wanted = 0;
  check(cub::DeviceRadixSort::SortKeys(nullptr, wanted, buffers, count, 32, last_bit, native), "DeviceRadixSort::SortKeys");
  require(wanted <= scratch.sort, "embedding_backward: the sort of ", count, " tokens wants ", wanted, " bytes of scratch for ",
          scratch.sort);
  check(cub::DeviceRadixSort::SortKeys(bytes + 2 * scratch.order, wanted, buffers, count, 32, last_bit, native),
        "DeviceRadixSort::SortKeys");
  return buffers.Current();
}

template <class G>
void launch_backward(cudaStream_t native, const EmbeddingBackward& op, const std::uint64_t* order) {
  const Backward<G> a{.order = order,
                      .count = op.tokens.rows(),
                      .gy = op.gy.as<BFloat16>(),
                      .gy_stride = op.gy.row_stride,
                      .gtable = op.gtable.as<G>(),
                      .gtable_stride = op.gtable.row_stride,
                      .vocabulary = op.gtable.rows(),
                      .width = op.gtable.cols()};
  const auto launch = [&](auto kernel, int lanes) {
    const dim3 blocks(static_cast<unsigned>(a.count),
                      static_cast<unsigned>(ceil_div(a.width, std::int64_t{32} * kWarps * lanes)));
    kernel<<<blocks, 32 * kWarps, 0, native>>>(a);
    check_launch("embedding_backward");
  };
  if (in_vectors(op.gy) && in_vectors(op.gtable)) {
    launch(backward_kernel<kVector, G>, kVector);
  } else {
    launch(backward_kernel<1, G>, 1);
  }
}

}  // namespace

void embedding_forward(Stream& stream, const EmbeddingForward& op) {
  require(op.table.dtype == DType::bf16, "embedding_forward on CUDA: the table is ", name_of(op.table.dtype), ", not BF16");
  const std::int64_t count = op.tokens.rows(), width = op.table.cols();
  if (count == 0) return;
  const auto kernel = in_vectors(op.table) && in_vectors(op.y) ? forward_kernel<kVector> : forward_kernel<1>;
  kernel<<<static_cast<unsigned>(count), kForwardThreads, 0, native_stream(stream)>>>(
      op.tokens.as<std::int32_t>(), op.table.as<BFloat16>(), op.table.row_stride, op.table.rows(), op.first, op.vocabulary,
      op.y.as<BFloat16>(), op.y.row_stride, width);
  check_launch("embedding_forward");
}

std::size_t embedding_scratch_bytes(std::int64_t tokens) { return Scratch(tokens).bytes(); }

void embedding_backward(Stream& stream, const EmbeddingBackward& op, void* scratch) {
  require(op.gy.dtype == DType::bf16, "embedding_backward on CUDA: gy is ", name_of(op.gy.dtype), ", not BF16");
  require(op.gtable.dtype == DType::f32 || op.gtable.dtype == DType::bf16, "embedding_backward on CUDA: gtable is ",
          name_of(op.gtable.dtype), ", not F32 or BF16");
  if (op.gy.elements() == 0) return;
  const cudaStream_t native = native_stream(stream);
  const std::uint64_t* order = sorted(native, op, scratch);
  if (op.gtable.dtype == DType::f32) {
    launch_backward<float>(native, op, order);
  } else {
    launch_backward<BFloat16>(native, op, order);
  }
}

}  // namespace octet::kernels::cuda
