// Dispatch of tokens to experts and back. Each token t has k rows, one for each of its experts. The rows of one expert are
// contiguous and in the order of the tokens. The experts follow one another.
#pragma once

#include "octet/device/device.h"
#include "octet/kernels/quantize/quantize.h"
#include "octet/tensor/row_groups.h"
#include "octet/tensor/tensor.h"

namespace octet::kernels {

// Computes the rows. Expert e begins at the sum of the counts of the experts before it, each rounded up to `multiple`.
struct ExpertOrder {
  Tensor experts;  // [T, k] I32 in [0, E), distinct within a token
  std::int64_t multiple = 1;
  Tensor counts;  // [E] I32, overwritten: number of rows of each expert
  Tensor rows;    // [T, k] I32, overwritten: the row of each assignment
};
void expert_order(Stream& stream, const ExpertOrder& op);

// Computes where groups begin and which tile of rows belongs to which group, from groups.counts.
struct GroupRows {
  RowGroups groups;  // first and tiles are overwritten
};
void group_rows(Stream& stream, const GroupRows& op);

// Writes zeros after the rows of each group, up to the next group.
struct ClearGaps {
  RowGroups groups;
  Tensor x;  // [R, D] of any dtype; other rows keep their values
};
void clear_gaps(Stream& stream, const ClearGaps& op);

// y[rows[t, s]] = weights[t, s] x[t], rounded once. Other rows of y keep their values. Without weights, rows are copied. With
// `codes`, its rowwise part is overwritten instead of y. It gets byte for byte what quantize() would make of these rows of y,
// with the scale that the history of expert experts[t, s] gives. The scales and the amaxes of consecutive experts are as far
// apart as those of consecutive groups in `codes`.
struct ExpertScatter {
  Tensor x;                     // [T, D] BF16, F32 or F64; without weights of any dtype; with codes BF16
  Tensor rows;                  // [T, k] I32, all distinct and in [0, R)
  Tensor weights;               // [T, k] F32 (F64 for F64), optional
  Tensor y;                     // [R, D] of x's dtype; rows named by `rows` are overwritten
  Tensor experts = {};          // [T, k] I32, with codes: the expert of each row
  QuantizeEpilogue codes = {};  // rowwise [R, D] of the tensor tile, without scale_inv and groups
};
void expert_scatter(Stream& stream, const ExpertScatter& op);

// amax[e] = the largest magnitude among the rows of expert e as expert_scatter() would write them in BF16; 0 if it has none.
// NaN propagates. Reads each token once: multiplying by a weight and rounding do not change the order of magnitudes.
struct ExpertAmax {
  Tensor x;        // [T, D] BF16
  Tensor experts;  // [T, k] I32 in [0, E)
  Tensor weights;  // [T, k] F32, finite or NaN, optional
  Tensor amax;     // [E] F32, overwritten
};
void expert_amax(Stream& stream, const ExpertAmax& op);

// y[t] = residual[t] + sum over s of weights[t, s] x[rows[t, s]], summed in FP32 (F64 for F64) and rounded once.
struct ExpertCombine {
  Tensor x;         // [R, D] BF16, F32 or F64
  Tensor rows;      // [T, k] I32 in [0, R)
  Tensor weights;   // [T, k] F32 (F64 for F64), optional; without them 1
  Tensor residual;  // [T, D] of x's dtype, optional
  Tensor y;         // [T, D] of x's dtype, overwritten; may be the residual
};
void expert_combine(Stream& stream, const ExpertCombine& op);

// gweights[t, s] = dot product of gy[t] and x[rows[t, s]], in FP32 (F64 for F64).
struct ExpertDot {
  Tensor gy;        // [T, D] BF16, F32 or F64
  Tensor x;         // [R, D] of gy's dtype
  Tensor rows;      // [T, k] I32 in [0, R)
  Tensor gweights;  // [T, k] F32 (F64 for F64), overwritten
};
void expert_dot(Stream& stream, const ExpertDot& op);

}  // namespace octet::kernels
