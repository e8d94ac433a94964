// Element-wise operations.
#pragma once

#include <cstddef>
#include <vector>

#include "octet/device/device.h"
#include "octet/tensor/tensor.h"

namespace octet::kernels {

// y = x converted to y's dtype (F64, F32, BF16, F16), rounded to nearest even. Rows may be strided.
struct Cast {
  Tensor x;
  Tensor y;  // of x's shape; overwritten
};
void cast(Stream& stream, const Cast& op);

// y += x (each F64, F32 or BF16). The sum is computed in FP32, or in F64 if either operand is F64, and rounded to y's dtype to
// nearest even. Rows may be strided. If x has a row stride of 0, its one row is added to every row of y.
struct Add {
  Tensor x;
  Tensor y;  // of x's shape; accumulated into
};
void add(Stream& stream, const Add& op);

// y = the sum of the parts in their order, in FP32 (F64 for F64), rounded to y's dtype, + residual, rounded again. This gives
// the bits of a reduction over ranks on the CPU (comm/group.h) followed by add(). All operands are contiguous and have y's
// shape and dtype: F64, F32 or BF16.
inline constexpr std::size_t kMostParts = 8;
struct SumParts {
  std::vector<Tensor> parts;  // 1 to kMostParts
  Tensor residual;            // optional
  Tensor y;                   // overwritten; may be one of the others
};
void sum_parts(Stream& stream, const SumParts& op);

}  // namespace octet::kernels
