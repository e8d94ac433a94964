#include "octet/nn/product.h"

#include "octet/kernels/grouped_gemm/grouped_gemm.h"

namespace octet::nn {

void multiply(const Scope& scope, const AlongRows& op) {
  if (!scope.groups) {
    return kernels::gemm(
        scope.stream, scope.scratch,
        {.a = op.a, .b = op.b.front(), .c = op.c, .d = op.d, .factor = op.factor, .accumulation = op.accumulation});
  }
  require(!op.c || op.c.data == op.d.data, "a grouped product adds to its own rows only");
  kernels::grouped_gemm(scope.stream, scope.scratch,
                        kernels::GroupedGemmM{.groups = *scope.groups,
                                              .a = op.a,
                                              .b = op.b,
                                              .d = op.d,
                                              .accumulate = static_cast<bool>(op.c),
                                              .factor = op.factor,
                                              .accumulation = op.accumulation});
}

void multiply(const Scope& scope, const AlongTokens& op) {
  if (!scope.groups) {
    const Tensor& d = op.d.front();
    return kernels::gemm(scope.stream, scope.scratch,
                         {.a = op.a, .b = op.b, .c = op.accumulate ? d : Tensor{}, .d = d, .accumulation = op.accumulation});
  }
  kernels::grouped_gemm(scope.stream, scope.scratch,
                        kernels::GroupedGemmK{.groups = *scope.groups,
                                              .a = op.a,
                                              .b = op.b,
                                              .d = op.d,
                                              .accumulate = op.accumulate,
                                              .accumulation = op.accumulation});
}

}  // namespace octet::nn
