#include "octet/nn/watch.h"

#include "octet/nn/scope.h"

namespace octet::nn {

Tensor run_alone(const Scope& scope, const kernels::Gemm& gemm) {
  kernels::Gemm alone = gemm;
  alone.d = allocate(scope.scratch, gemm.d.dtype, gemm.d.shape);
  kernels::gemm(scope.stream, scope.scratch, alone);
  return alone.d;
}

}  // namespace octet::nn
