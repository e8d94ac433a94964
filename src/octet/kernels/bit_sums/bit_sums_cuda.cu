#include <cuda_runtime.h>

#include "octet/device/cuda/cuda.h"
#include "octet/kernels/bit_sums/bit_sums_cuda.h"
#include "octet/kernels/block_sum_cuda.cuh"

namespace octet::kernels::cuda {
namespace {

using octet::cuda::check_launch;
using octet::cuda::native_stream;

constexpr int kThreads = 256;

// What atomicAdd and shuffles take for std::uint64_t.
using Sum = unsigned long long;

// The part of a thread in the sum of a chunk, whose first element is element `first` of its tensor.
template <class Bits>
__device__ Sum thread_sum(const void* data, std::int64_t first, int count) {
  constexpr int kElements = sizeof(uint4) / sizeof(Bits);
  const Bits* const x = static_cast<const Bits*>(data) + first;
  const int vectors = reinterpret_cast<std::uintptr_t>(x) % sizeof(uint4) == 0 ? count / kElements : 0;
  Sum sum = 0;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < vectors; i += kThreads) {
    const uint4 vector = reinterpret_cast<const uint4*>(x)[i];
    Bits bits[kElements];
    memcpy(bits, &vector, sizeof vector);
    const Sum factor = 2 * static_cast<Sum>(first + std::int64_t{i} * kElements) + 1;
#pragma unroll
    for (int e = 0; e < kElements; ++e) sum += static_cast<Sum>(bits[e]) * (factor + 2 * static_cast<Sum>(e));
  }
  for (int i = vectors * kElements + static_cast<int>(threadIdx.x); i < count; i += kThreads)
    sum += static_cast<Sum>(x[i]) * (2 * static_cast<Sum>(first + i) + 1);
  return sum;
}

// One block adds one chunk to the sum of its tensor.
__global__ void __launch_bounds__(kThreads) bit_sums_kernel(const TensorList::Item* items, const Chunk* chunks, Sum* sums) {
  const Chunk chunk = chunks[blockIdx.x];
  const TensorList::Item x = items[chunk.item];
  const std::int64_t first = std::int64_t{chunk.number} * TensorList::kChunk;
  const int count = static_cast<int>(min(TensorList::kChunk, x.count - first));
  Sum sum = 0;
  switch (size_of(x.dtype)) {
    case 1:
      sum = thread_sum<std::uint8_t>(x.data, first, count);
      break;
    case 2:
      sum = thread_sum<std::uint16_t>(x.data, first, count);
      break;
    case 4:
      sum = thread_sum<std::uint32_t>(x.data, first, count);
      break;
    default:
      sum = thread_sum<std::uint64_t>(x.data, first, count);
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) atomicAdd(sums + chunk.item, sum);
}

}  // namespace

void bit_sums(Stream& stream, const BitSums& op) {
  const OpTable<TensorList::Item>& table = op.x.table();
  if (table.chunks() == 0) return;
  static_assert(sizeof(Sum) == sizeof(std::uint64_t));
  bit_sums_kernel<<<static_cast<unsigned>(table.chunks()), kThreads, 0, native_stream(stream)>>>(
      table.items_of_device(), table.chunks_of_device(), reinterpret_cast<Sum*>(op.sums));
  check_launch("bit_sums");
}

}  // namespace octet::kernels::cuda
