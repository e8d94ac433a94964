#include "octet/kernels/grouped_gemm/grouped_gemm.h"

#include <algorithm>
#include <utility>

#include "octet/device/cuda/cuda_device.h"
#include "octet/kernels/gemm/gemm_plan.h"
#include "octet/kernels/gemm/gemm_scratch.h"
#include "octet/kernels/gemm/lanes.h"
#include "octet/kernels/grouped_gemm/grouped_gemm_cuda.h"
#include "octet/kernels/grouped_gemm/groups.h"

namespace octet::kernels {
namespace {

bool is_fp8(const GemmOperand& x) { return size_of(x.values.dtype) == 1; }

void check_groups(const RowGroups& groups) {
  const Shape counts{groups.size()}, first{groups.size() + 1};
  require(groups.size() > 0 && groups.counts.shape == counts && groups.first.shape == first && groups.tiles.shape.rank() == 1,
          "grouped_gemm: groups of ", groups.counts.shape, ", ", groups.first.shape, " and ", groups.tiles.shape);
  for (const Tensor* x : {&groups.counts, &groups.first, &groups.tiles})
    require(x->dtype == DType::i32, "grouped_gemm: groups are I32, got ", octet::name_of(x->dtype));
}

void check_codes(const char* name, const GemmOperand& x, const Shape& expected, DeviceKind target) {
  if (!is_fp8(x)) return;
  require(reads(target, x), "grouped_gemm: FP8 operand ", name, " with tile ", name_of(x.tile), " must have K last on ",
          octet::name_of(target));
  require(x.scale_inv.dtype == scale_dtype(x.tile) && x.scale_inv.elements() == expected.elements(), "grouped_gemm: ", name, " ",
          x.values.shape, " has scales ", x.scale_inv.shape, ", not ", expected);
}

void check(const GroupedGemmM& op, DeviceKind target) {
  check_groups(op.groups);
  require(static_cast<std::int64_t>(op.b.size()) == op.groups.size(), "grouped_gemm: ", op.b.size(), " operands b of ",
          op.groups.size(), " groups");
  const std::int64_t rows = op.groups.rows(), n = op.b.front().rows(), k = op.b.front().k();
  require(op.a.layout == GemmOperand::Layout::k_last && op.a.values.shape == Shape({rows, k}), "grouped_gemm: a ",
          op.a.values.shape, ", not [", rows, ", ", k, "] with K last");
  require(op.d.shape == Shape({rows, n}), "grouped_gemm: d ", op.d.shape, ", not [", rows, ", ", n, "]");
  require(op.factor == 1.0f || !is_fp8(op.a), "grouped_gemm: FP8 operands have scales, and no factor");
  check_codes("a", op.a, rowwise_scale_shape(op.a.tile, rows, k, op.groups.size()), target);
  for (const GemmOperand& b : op.b) {
    require(b.values.shape == op.b.front().values.shape && b.layout == op.b.front().layout && b.tile == op.b.front().tile &&
                b.values.dtype == op.b.front().values.dtype,
            "grouped_gemm: operands b differ");
    check_codes("b", b, scale_shape(b.tile, n, k), target);
  }
}

void check(const GroupedGemmK& op, DeviceKind target) {
  check_groups(op.groups);
  const std::int64_t rows = op.groups.rows();
  require(static_cast<std::int64_t>(op.d.size()) == op.groups.size(), "grouped_gemm: ", op.d.size(), " results of ",
          op.groups.size(), " groups");
  require(op.a.k() == rows && op.b.k() == rows, "grouped_gemm: a ", op.a.values.shape, " and b ", op.b.values.shape, " along ",
          rows, " rows");
  check_codes("a", op.a, columnwise_scale_shape(op.a.tile, rows, op.a.rows(), op.groups.size()), target);
  check_codes("b", op.b, columnwise_scale_shape(op.b.tile, rows, op.b.rows(), op.groups.size()), target);
  const Shape expected{op.a.rows(), op.b.rows()};
  for (const Tensor& d : op.d) {
    require(d.shape == expected && d.row_stride == op.d.front().row_stride && d.dtype == op.d.front().dtype, "grouped_gemm: d ",
            d.shape, ", not ", expected);
  }
}

const char* profile_name(const GemmOperand& a, ScaleTile b, Accumulation accumulation) {
  if (!is_fp8(a)) return a.values.dtype == DType::bf16 ? "gemm bf16 grouped" : "gemm fp32 grouped";
  const bool fast = accumulation == Accumulation::fast;
  switch (a.tile) {
    case ScaleTile::tensor:
      return fast ? "gemm fp8 fast grouped" : "gemm fp8 precise grouped";
    case ScaleTile::row:
      return fast ? "gemm fp8 row fast grouped" : "gemm fp8 row precise grouped";
    case ScaleTile::mx_1x32:
      return "gemm mxfp8 grouped";
    default:
      return b == a.tile ? "gemm fp8 1x128 1x128 grouped" : "gemm fp8 1x128 128x128 grouped";
  }
}

// The work of the rows that a plan expects; `once` are the bytes that do not depend on rows.
Work work_of(const GemmOperand& a, const RowGroups& groups, std::int64_t n, std::int64_t k, double once) {
  const double flops = 2.0 * static_cast<double>(groups.planned) * static_cast<double>(n) * static_cast<double>(k);
  return {.flops = flops,
          .fp8_flops = is_fp8(a) ? flops : 0,
          .bytes = groups.planned_share() * static_cast<double>(a.values.bytes()) + once,
          .shape = {groups.planned, n, k}};
}

Work work_of(const GroupedGemmM& op) {
  const double weights = static_cast<double>(op.b.size()) * static_cast<double>(op.b.front().values.bytes());
  const double results = static_cast<double>(op.groups.planned * op.d.cols()) * static_cast<double>(size_of(op.d.dtype));
  return work_of(op.a, op.groups, op.d.cols(), op.a.k(), weights + (op.accumulate ? 2 : 1) * results);
}

Work work_of(const GroupedGemmK& op) {
  const double results = static_cast<double>(op.d.size()) * static_cast<double>(op.d.front().bytes());
  const double b = static_cast<double>(op.groups.planned * op.b.rows()) * static_cast<double>(size_of(op.b.values.dtype));
  return work_of(op.a, op.groups, op.a.rows(), op.b.rows(), b + (op.accumulate ? 2 : 1) * results);
}

// The product of one group that had all rows: no group needs more scratch.
GroupExtent whole(const RowGroups& groups) { return {.group = 0, .first = 0, .count = groups.rows()}; }

// Scratch for strided scales that a backend copies, beside that of the products.
std::size_t scale_bytes(const GemmOperand& x) { return is_fp8(x) ? x.scale_inv.bytes() + Device::kAlignment : 0; }

ScaleTile tile_of_b(const GroupedGemmM& op) { return op.b.front().tile; }
ScaleTile tile_of_b(const GroupedGemmK& op) { return op.b.tile; }

template <class Op>
void run(Stream& stream, Arena& scratch, const Op& op, std::size_t scales) {
  check(op, stream.target());
  stream.count(profile_name(op.a, tile_of_b(op), op.accumulation), work_of(op));
  const ArenaScope scope(scratch);
  const Gemm largest = product_of(op, whole(op.groups), op.groups.rows());
  if (stream.target() == DeviceKind::cuda) {
    [[maybe_unused]] void* const memory = scratch.allocate(cuda::gemm_scratch_bytes(largest) + scales);
    if constexpr (kCudaBackend) {
      if (stream.kind() == DeviceKind::cuda) cuda::grouped_gemm(stream, op, memory);
    }
    return;
  }
  const GemmPlan plan = plan_gemm(largest);
  const std::int64_t lanes = cpu::lanes_for(cpu::kMostLanes);
  const std::size_t size = largest.d.dtype == DType::f64 ? sizeof(double) : sizeof(float);
  void* const memory = scratch.allocate(static_cast<std::size_t>(lanes * plan.lane_elements()) * size);
  if (stream.kind() == DeviceKind::cpu) stream.call([=] { cpu::grouped_gemm(op, lanes, memory); });
}

Tensor rows_of(const Tensor& x, const GroupExtent& part, std::int64_t rows) {
  return x.slice_rows(part.first, part.first + rows);
}

GemmOperand part_along_k(const GemmOperand& x, const GroupExtent& part, std::int64_t rows) {
  if (!is_fp8(x)) return transposed_values(rows_of(x.values, part, rows));
  Quantized codes{.tile = x.tile, .columnwise = x.values, .columnwise_scale_inv = x.scale_inv};
  if (x.layout == GemmOperand::Layout::k_first) {
    std::swap(codes.rowwise, codes.columnwise);
    codes.rowwise_scale_inv = x.scale_inv;
  }
  return transposed_operand(group_of(codes, part, rows));
}

}  // namespace

Gemm product_of(const GroupedGemmM& op, const GroupExtent& part, std::int64_t rows) {
  const GemmOperand a =
      is_fp8(op.a)
          ? row_operand(group_of({.tile = op.a.tile, .rowwise = op.a.values, .rowwise_scale_inv = op.a.scale_inv}, part, rows))
          : GemmOperand{.values = rows_of(op.a.values, part, rows)};
  const Tensor d = rows_of(op.d, part, rows);
  return {.a = a,
          .b = op.b[part.group],
          .c = op.accumulate ? d : Tensor{},
          .d = d,
          .factor = op.factor,
          .accumulation = op.accumulation};
}

Gemm product_of(const GroupedGemmK& op, const GroupExtent& part, std::int64_t rows) {
  const Tensor& d = op.d[part.group];
  return {.a = part_along_k(op.a, part, rows),
          .b = part_along_k(op.b, part, rows),
          .c = op.accumulate ? d : Tensor{},
          .d = d,
          .accumulation = op.accumulation};
}

void grouped_gemm(Stream& stream, Arena& scratch, const GroupedGemmM& op) { run(stream, scratch, op, scale_bytes(op.a)); }
void grouped_gemm(Stream& stream, Arena& scratch, const GroupedGemmK& op) {
  run(stream, scratch, op, scale_bytes(op.a) + scale_bytes(op.b));
}

// has_kernel() in grouped_gemm_cuda.cpp decides for each op, by its operands. It must not refuse what is allowed here.
bool in_one_launch(Stream& stream, const Recipe& recipe, const std::vector<std::int64_t>& dims) {
  if constexpr (kCudaBackend) {
    if (stream.kind() == DeviceKind::cuda && !cuda::is_hopper(stream)) return false;
  }
  const bool has_kernel = recipe.compute == Compute::bf16 || (recipe.is_fp8() && recipe.w.tile != ScaleTile::mx_1x32);
  return has_kernel && std::all_of(dims.begin(), dims.end(), [](std::int64_t dim) { return dim % 16 == 0; });
}

}  // namespace octet::kernels
