#include "octet/kernels/fill/fill_cpu.h"

#include <cstring>

#include "octet/base/rng.h"
#include "octet/base/threads.h"

namespace octet::kernels::cpu {
namespace {

constexpr std::int64_t kElementsPerTask = 1 << 16;

}  // namespace

void fill_normal(const FillNormal& op) {
  const Rng rng(op.seed, RngStream::init, op.subject);
  visit_float(op.x.dtype, [&]<class T>() {
    T* x = op.x.as<T>();
    parallel_ranges(op.x.elements(), kElementsPerTask, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const double value = op.mean + op.deviation * rng.normal(static_cast<std::uint64_t>(op.elements.at(i)));
        x[i] = static_cast<T>(static_cast<float>(value));
      }
    });
  });
}

void zero(const Zero& op) {
  const std::vector<Tensor>& tensors = op.x.tensors();
  parallel_chunks(
      tensors, [](const Tensor& x) { return x.elements(); }, TensorList::kChunk,
      [&](std::size_t number, std::int64_t, std::int64_t begin, std::int64_t end) {
        const Tensor& x = tensors[number];
        const std::size_t size = size_of(x.dtype);
        std::memset(x.as_bytes() + static_cast<std::size_t>(begin) * size, 0, static_cast<std::size_t>(end - begin) * size);
      });
}

}  // namespace octet::kernels::cpu
