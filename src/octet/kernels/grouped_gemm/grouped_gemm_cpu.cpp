#include <cstring>

#include "octet/kernels/gemm/gemm_plan.h"
#include "octet/kernels/grouped_gemm/groups.h"

namespace octet::kernels::cpu {
namespace {

// Rows that are multiplied are rounded up to this: the smallest step of rows in a plan, and of K in FP8.
constexpr std::int64_t kRows = 16;

void clear(const Tensor& x) {
  for (std::int64_t row = 0; row < x.rows(); ++row)
    std::memset(x.slice_rows(row, row + 1).data, 0, static_cast<std::size_t>(x.cols()) * size_of(x.dtype));
}

// A product with the tiles and chunks of the largest that there could be, for which the scratch was planned.
struct Planned {
  std::vector<Gemm> ops;
  std::vector<GemmPlan> plans;
  void add(const Gemm& op, GemmPlan largest) {
    largest.m = op.a.rows();
    largest.n = op.b.rows();
    largest.k = op.a.k();
    ops.push_back(op);
    plans.push_back(largest);
  }
};

template <class Op>
GemmPlan largest(const Op& op) {
  return plan_gemm(product_of(op, {.group = 0, .first = 0, .count = op.groups.rows()}, op.groups.rows()));
}

}  // namespace

void grouped_gemm(const GroupedGemmM& op, std::int64_t lanes, void* memory) {
  const GemmPlan plan = largest(op);
  Planned planned;
  for (const GroupExtent& part : extents_of(op.groups)) {
    const std::int64_t rows = round_up(part.count, kRows);
    if (rows > 0) planned.add(product_of(op, part, rows), plan);
    clear(op.d.slice_rows(part.first + rows, part.first + part.padded()));
  }
  gemms(planned.ops, planned.plans, lanes, memory);
}

void grouped_gemm(const GroupedGemmK& op, std::int64_t lanes, void* memory) {
  const GemmPlan plan = largest(op);
  Planned planned;
  for (const GroupExtent& part : extents_of(op.groups)) {
    if (part.count == 0) {
      if (!op.accumulate) clear(op.d[part.group]);
      continue;
    }
    const std::int64_t rows = size_of(op.a.values.dtype) == 1 ? padded_k(part.count, op.a.tile) : part.count;
    planned.add(product_of(op, part, rows), plan);
  }
  gemms(planned.ops, planned.plans, lanes, memory);
}

}  // namespace octet::kernels::cpu
