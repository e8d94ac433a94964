#include "octet/kernels/elementwise/convert.h"
#include "octet/kernels/elementwise/elementwise_cuda.h"
#include "octet/kernels/elementwise/runs_cuda.cuh"

namespace octet::kernels::cuda {
namespace {

struct Converted {
  template <class To, class From>
  __device__ To operator()(To, From x) const {
    return convert<To>(x);
  }
};

}  // namespace

void cast(Stream& stream, const Cast& op) {
  visit_castable(op.x.dtype, [&]<class From>() {
    visit_castable(op.y.dtype, [&]<class To>() { launch_runs<Converted, To, From>(stream, "cast", op.x, op.y); });
  });
}

}  // namespace octet::kernels::cuda
