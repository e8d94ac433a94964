#include "octet/kernels/bit_sums/bit_sums_cpu.h"

#include <atomic>
#include <cstring>

namespace octet::kernels::cpu {
namespace {

// The sum of `count` elements from element `first` of a tensor on. The factor 2 (first + j) + 1 is divided into 2 first and
// 2 j + 1, which fits in 32 bits: processors multiply vectors of 32-bit numbers faster than of 64-bit ones.
template <class Bits>
std::uint64_t sum_of_chunk(const std::uint8_t* x, std::int64_t first, std::int64_t count) {
  std::uint64_t plain = 0, weighted = 0;
  for (std::uint32_t j = 0; j < static_cast<std::uint32_t>(count); ++j) {
    Bits bits;
    std::memcpy(&bits, x + j * sizeof(Bits), sizeof(Bits));
    plain += bits;
    weighted += std::uint64_t{bits} * std::uint64_t{2 * j + 1};
  }
  return weighted + 2 * static_cast<std::uint64_t>(first) * plain;
}

std::uint64_t sum_of_chunk(const Tensor& x, std::int64_t begin, std::int64_t end) {
  const std::size_t size = size_of(x.dtype);
  const std::uint8_t* const from = x.as_bytes() + static_cast<std::size_t>(begin) * size;
  switch (size) {
    case 1:
      return sum_of_chunk<std::uint8_t>(from, begin, end - begin);
    case 2:
      return sum_of_chunk<std::uint16_t>(from, begin, end - begin);
    case 4:
      return sum_of_chunk<std::uint32_t>(from, begin, end - begin);
    default:
      return sum_of_chunk<std::uint64_t>(from, begin, end - begin);
  }
}

}  // namespace

void bit_sums(const BitSums& op) {
  const std::vector<Tensor>& tensors = op.x.tensors();
  parallel_chunks(
      tensors, [](const Tensor& x) { return x.elements(); }, TensorList::kChunk,
      [&](std::size_t number, std::int64_t, std::int64_t begin, std::int64_t end) {
        const std::uint64_t sum = sum_of_chunk(tensors[number], begin, end);
        std::atomic_ref(op.sums[number]).fetch_add(sum, std::memory_order_relaxed);
      });
}

}  // namespace octet::kernels::cpu
