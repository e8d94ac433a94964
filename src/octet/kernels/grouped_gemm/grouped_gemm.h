// Products of many groups of rows (tensor/row_groups.h) in one launch. Each group's product is that of kernels/gemm:
//   along M   D[rows of g] = factor A[rows of g] · B_gᵀ (+ D[rows of g])    fprop and dgrad of experts
//   along K   D_g = A[rows of g]ᵀ · B[rows of g] (+ D_g)                    wgrad of experts
// The names are those of DeepGEMM.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "octet/kernels/gemm/gemm.h"
#include "octet/numerics/recipe.h"
#include "octet/tensor/row_groups.h"

namespace octet::kernels {

// In a profile, a grouped product has the name of the product of one group, and this suffix.
inline constexpr std::string_view kGroupedSuffix = " grouped";

// All B_g have one shape, dtype, layout and tile.
struct GroupedGemmM {
  RowGroups groups;
  GemmOperand a;               // [R, K]; the tensor tile has scales [G]
  std::vector<GemmOperand> b;  // [N, K] of each group; may have the tensor tile if A has the row tile
  Tensor d;                    // [R, N] BF16, F32 or F64; zeros follow the rows of each group
  bool accumulate = false;     // true: adds to the rows of all groups; false: overwrites them
  float factor = 1.0f;         // must be 1 for FP8 operands
  Accumulation accumulation = Accumulation::precise;
};
void grouped_gemm(Stream& stream, Arena& scratch, const GroupedGemmM& op);

// A group without rows has the product 0.
struct GroupedGemmK {
  RowGroups groups;
  GemmOperand a, b;  // [M, R] and [N, R]: columnwise codes, or values or codes [R, M] and [R, N] with K first. Scales: the
                     // tensor tile has [G], the row tile [G, M] and [G, N], finer tiles those of columnwise codes of all R rows
  std::vector<Tensor> d;    // [M, N] of each group, BF16, F32 or F64
  bool accumulate = false;  // true: adds to D; false: overwrites it
  Accumulation accumulation = Accumulation::precise;
};
void grouped_gemm(Stream& stream, Arena& scratch, const GroupedGemmK& op);

// Whether a GPU multiplies all groups in one launch, by a kernel that does not depend on their rows. Otherwise each group has
// its own product, whose shape may be new in every step. `dims` are all N and K, including the ranks of adapters. A planned GPU
// counts as a Hopper.
bool in_one_launch(Stream& stream, const Recipe& recipe, const std::vector<std::int64_t>& dims);

}  // namespace octet::kernels
