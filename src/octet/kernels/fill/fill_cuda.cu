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

}  // namespace octet::kernels::cuda
