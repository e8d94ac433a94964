#include <cuda_runtime.h>

#include <array>
#include <cstring>
#include <utility>

#include "octet/base/math.h"
#include "octet/device/cuda/cuda.h"
#include "octet/kernels/elementwise/convert.h"
#include "octet/kernels/elementwise/elementwise_cuda.h"
#include "octet/kernels/vector_cuda.cuh"

namespace octet::kernels::cuda {
namespace {

constexpr int kThreads = 256;

template <class T>
struct Parts {
  const T* parts[kMostParts];
  const T* residual;
  T* y;
};

template <class T, int kCount>
__device__ T sum_at(const Parts<T>& op, std::int64_t i) {
  Sum<T> total = convert<Sum<T>>(op.parts[0][i]);
  for (int part = 1; part < kCount; ++part) total += convert<Sum<T>>(op.parts[part][i]);
  const T rounded = convert<T>(total);
  return op.residual ? sum(rounded, op.residual[i]) : rounded;
}

// The kVector elements from `begin` on, with 16-byte accesses. All loads come first, because their latency is the time of the
// kernel.
template <class T, int kCount>
__device__ void sum_vector(const Parts<T>& op, std::int64_t begin) {
  Vector<T> loaded[kCount], residual;
  for (int part = 0; part < kCount; ++part) loaded[part] = load_vector(op.parts[part] + begin);
  if (op.residual) residual = load_vector(op.residual + begin);
  T values[kVector];
  Sum<T> total[kVector];
  for (int part = 0; part < kCount; ++part) {
    std::memcpy(values, &loaded[part], sizeof values);
    for (int i = 0; i < kVector; ++i) total[i] = part == 0 ? convert<Sum<T>>(values[i]) : total[i] + convert<Sum<T>>(values[i]);
  }
  T out[kVector];
  for (int i = 0; i < kVector; ++i) out[i] = convert<T>(total[i]);
  if (op.residual) {
    std::memcpy(values, &residual, sizeof values);
    for (int i = 0; i < kVector; ++i) out[i] = sum(out[i], values[i]);
  }
  Vector<T> stored;
  std::memcpy(&stored, out, sizeof out);
  store_vector_unsplit(op.y + begin, stored);
}

// Each thread sums kVector elements.
template <class T, int kCount>
__global__ void __launch_bounds__(kThreads) sum_parts_kernel(Parts<T> op, std::int64_t elements, bool aligned) {
  const std::int64_t begin = (std::int64_t{blockIdx.x} * kThreads + threadIdx.x) * kVector;
  if (aligned && begin + kVector <= elements) return sum_vector<T, kCount>(op, begin);
  for (std::int64_t i = begin; i < min(begin + kVector, elements); ++i) op.y[i] = sum_at<T, kCount>(op, i);
}

// The kernels for 1 to kMostParts parts.
template <class T, std::size_t... kBefore>
auto kernel_of(std::size_t count, std::index_sequence<kBefore...>) {
  constexpr std::array kKernels = {&sum_parts_kernel<T, static_cast<int>(kBefore) + 1>...};
  return kKernels[count - 1];
}

}  // namespace

void sum_parts(Stream& stream, const SumParts& op) {
  const std::int64_t elements = op.y.elements();
  if (elements == 0) return;
  visit_float(op.y.dtype, [&]<class T>() {
    Parts<T> of{.parts = {}, .residual = op.residual ? op.residual.as<T>() : nullptr, .y = op.y.as<T>()};
    bool aligned = are_aligned(of.residual, of.y);
    for (std::size_t part = 0; part < op.parts.size(); ++part) {
      of.parts[part] = op.parts[part].as<T>();
      aligned = aligned && are_aligned(of.parts[part]);
    }
    const auto blocks = static_cast<unsigned>(ceil_div(elements, kThreads * kVector));
    const auto kernel = kernel_of<T>(op.parts.size(), std::make_index_sequence<kMostParts>{});
    kernel<<<blocks, kThreads, 0, octet::cuda::native_stream(stream)>>>(of, elements, aligned);
    octet::cuda::check_launch("sum_parts");
  });
}

}  // namespace octet::kernels::cuda
