#include <cuda_runtime.h>

#include "octet/base/math.h"
#include "octet/base/normal.h"
#include "octet/base/rng.h"
#include "octet/device/cuda/cuda.h"
#include "octet/kernels/fill/fill_cuda.h"

namespace octet::kernels::cuda {
namespace {

using octet::cuda::check_launch;
using octet::cuda::native_stream;

constexpr int kThreads = 256;

template <class T>
__global__ void fill_normal_kernel(T* x, std::int64_t count, double mean, double deviation, Rng rng, GlobalElements elements) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= count) return;
  const Philox4 w = rng.words(static_cast<std::uint64_t>(elements.at(i)));
  const BoxMuller n = box_muller(w[0], w[1]);
  const double value = mean + deviation * (sqrt(n.radius_squared) * n.cosine);
  x[i] = static_cast<T>(static_cast<float>(value));
}

// One block zeroes one chunk. Chunks of aligned tensors begin at multiples of 16 bytes.
__global__ void __launch_bounds__(kThreads) zero_kernel(const TensorList::Item* items, const Chunk* chunks) {
  const Chunk chunk = chunks[blockIdx.x];
  const TensorList::Item x = items[chunk.item];
  const auto size = static_cast<std::int64_t>(size_of(x.dtype));
  const std::int64_t first = chunk.number * TensorList::kChunk;
  const int bytes = static_cast<int>(min(TensorList::kChunk, x.count - first) * size);
  std::uint8_t* const at = static_cast<std::uint8_t*>(x.data) + first * size;
  const int vectors = reinterpret_cast<std::uintptr_t>(at) % sizeof(uint4) == 0 ? bytes / static_cast<int>(sizeof(uint4)) : 0;
  for (int i = static_cast<int>(threadIdx.x); i < vectors; i += kThreads) reinterpret_cast<uint4*>(at)[i] = {};
  for (int i = vectors * static_cast<int>(sizeof(uint4)) + static_cast<int>(threadIdx.x); i < bytes; i += kThreads) at[i] = 0;
}

}  // namespace

void fill_normal(Stream& stream, const FillNormal& op) {
  const std::int64_t count = op.x.elements();
  if (count == 0) return;
  visit_float(op.x.dtype, [&]<class T>() {
    fill_normal_kernel<<<static_cast<unsigned>(ceil_div(count, kThreads)), kThreads, 0, native_stream(stream)>>>(
        op.x.as<T>(), count, op.mean, op.deviation, Rng(op.seed, RngStream::init, op.subject), op.elements);
  });
  check_launch("fill_normal");
}

void zero(Stream& stream, const Zero& op) {
  const OpTable<TensorList::Item>& table = op.x.table();
  zero_kernel<<<static_cast<unsigned>(table.chunks()), kThreads, 0, native_stream(stream)>>>(table.items_of_device(),
                                                                                             table.chunks_of_device());
  check_launch("zero");
}

}  // namespace octet::kernels::cuda
