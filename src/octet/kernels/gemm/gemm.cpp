#include "octet/kernels/gemm/gemm.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "octet/base/math.h"
#include "octet/device/cuda/cuda_device.h"
#include "octet/kernels/gemm/gemm_cuda.h"
#include "octet/kernels/gemm/gemm_plan.h"
#include "octet/kernels/gemm/gemm_tiles.h"
#include "octet/kernels/gemm/lanes.h"

namespace octet::kernels {
namespace {

bool is_fp8(DType dtype) { return dtype == DType::f8_e4m3 || dtype == DType::f8_e5m2; }

// Whether some device can multiply operands with these tiles.
bool may_multiply(ScaleTile a, ScaleTile b) {
  if (is_block(a) && is_block(b)) return a == ScaleTile::block_1x128 || b == ScaleTile::block_1x128;
  return a == b;
}

void check_operand(const char* name, const GemmOperand& x, DeviceKind target) {
  require(x.values.shape.rank() == 2, "gemm: ", name, " has shape ", x.values.shape, ", not two dims");
  if (!is_fp8(x.values.dtype)) return;
  require(reads(target, x), "gemm: FP8 operand ", name, " with tile ", name_of(x.tile), " must have K last on ",
          octet::name_of(target));
  const Shape expected = scale_shape(x.tile, x.rows(), x.k());
  require(x.scale_inv.elements() == expected.elements() && x.scale_inv.contiguous(), "gemm: ", name, " ", x.values.shape,
          " has scales of shape ", x.scale_inv.shape, ", not ", expected);
  require(x.scale_inv.dtype == scale_dtype(x.tile), "gemm: ", name, " has scales of ", octet::name_of(x.scale_inv.dtype),
          " for tile ", name_of(x.tile));
}

void check(const Gemm& op, DeviceKind target) {
  check_operand("a", op.a, target);
  check_operand("b", op.b, target);
  const DType a = op.a.values.dtype, b = op.b.values.dtype, d = op.d.dtype;
  require(a == b || (is_fp8(a) && is_fp8(b)), "gemm: operands of ", octet::name_of(a), " and ", octet::name_of(b));
  require(is_fp8(a) || a == DType::bf16 || a == DType::f32 || a == DType::f64, "gemm: operands of ", octet::name_of(a));
  require(a == DType::f64 ? d == DType::f64 : d == DType::bf16 || d == DType::f32, "gemm: operands of ", octet::name_of(a),
          " with a result of ", octet::name_of(d));
  if (is_fp8(a)) {
    require(may_multiply(op.a.tile, op.b.tile), "gemm: no device multiplies tiles ", name_of(op.a.tile), " and ",
            name_of(op.b.tile));
  }
  const std::int64_t m = op.a.rows(), n = op.b.rows(), k = op.a.k();
  require(k == op.b.k(), "gemm: a ", op.a.values.shape, " and b ", op.b.values.shape, " differ in K");
  require(op.d.shape == Shape({m, n}), "gemm: d has shape ", op.d.shape, ", not ", Shape({m, n}));
  if (op.c) {
    require(op.c.shape == op.d.shape && op.c.dtype == d, "gemm: c is ", octet::name_of(op.c.dtype), " ", op.c.shape, ", d ",
            octet::name_of(d), " ", op.d.shape);
    require(op.c.data != op.d.data || op.c.row_stride == op.d.row_stride, "gemm: c lies in d with another stride");
  }
  const std::int64_t limit = std::numeric_limits<std::int32_t>::max();  // of BLAS, which uses 32-bit sizes
  for (const Tensor& x : {op.a.values, op.b.values, op.d}) {
    require(x.shape[0] <= limit && x.shape[1] <= limit && x.row_stride <= limit, "gemm: too large for BLAS: ", x.shape);
  }
}

// The name of a GEMM in a profile. It tells apart what determines how fast a GEMM can be.
const char* profile_name(const Gemm& op) {
  const bool fast = op.accumulation == Accumulation::fast;
  const DType a = op.a.values.dtype;
  if (!is_fp8(a)) return a == DType::bf16 ? "gemm bf16" : "gemm fp32";
  switch (op.a.tile) {
    case ScaleTile::tensor:
      return fast ? "gemm fp8 fast" : "gemm fp8 precise";
    case ScaleTile::row:
      return fast ? "gemm fp8 row fast" : "gemm fp8 row precise";
    case ScaleTile::mx_1x32:
      return "gemm mxfp8";
    default:
      return op.a.tile == op.b.tile ? "gemm fp8 1x128 1x128" : "gemm fp8 1x128 128x128";
  }
}

std::int64_t floor_power_of_2(std::int64_t x) {
  return x < 1 ? 1 : static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(x)));
}

// Divides D into about tiles(...) tiles. OpenBLAS packs both operands again for each tile, which
// costs about 5% at 512x256 elements, 10% at 256x256 and 20% at 128x128, so tiles are large.
// But there are up to eight tiles if they can have 128x128 elements, so that small GEMMs use
// several cores, and at least two if a GEMM has enough work to be worth waking a second thread.
void cut_tiles(GemmPlan& plan) {
  constexpr std::int64_t kLarge = 512 * 256, kSmall = 128 * 128, kStep = 16;
  constexpr double kWorthTwo = 1e6;  // multiply-adds
  const std::int64_t area = plan.m * plan.n;
  std::int64_t tiles = std::max(floor_power_of_2(area / kLarge), std::min<std::int64_t>(8, floor_power_of_2(area / kSmall)));
  if (static_cast<double>(area) * static_cast<double>(plan.k) >= kWorthTwo) tiles = std::max<std::int64_t>(tiles, 2);
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (std::int64_t cuts_m = 1; cuts_m <= tiles; cuts_m *= 2) {
    const std::int64_t tile_m = std::min(plan.m, round_up(ceil_div(plan.m, cuts_m), kStep));
    const std::int64_t tile_n = std::min(plan.n, round_up(ceil_div(plan.n, tiles / cuts_m), kStep));
    // The total amount that is packed. If a narrow dim leaves fewer tiles than wanted, the missing tiles do not reduce it.
    const std::int64_t count = ceil_div(plan.m, tile_m) * ceil_div(plan.n, tile_n);
    const std::int64_t packed = (tile_m + tile_n) * std::max(count, tiles) * ceil_div(tiles, count);
    if (packed < least) {
      least = packed;
      plan.tile_m = tile_m;
      plan.tile_n = tile_n;
    }
  }
}

Work work_of(const Gemm& op, const GemmPlan& plan) {
  const double flops = 2.0 * static_cast<double>(plan.m) * static_cast<double>(plan.n) * static_cast<double>(plan.k);
  std::size_t bytes = op.a.values.bytes() + op.b.values.bytes() + op.d.bytes() + (op.c ? op.c.bytes() : 0);
  const bool fp8 = is_fp8(op.a.values.dtype);
  if (fp8) bytes += op.a.scale_inv.bytes() + op.b.scale_inv.bytes();
  return {.flops = flops, .fp8_flops = fp8 ? flops : 0, .bytes = static_cast<double>(bytes), .shape = {plan.m, plan.n, plan.k}};
}

}  // namespace

const char* name_of(ScaleTile tile) {
  switch (tile) {
    case ScaleTile::tensor:
      return "tensor";
    case ScaleTile::row:
      return "row";
    case ScaleTile::block_1x128:
      return "1x128";
    case ScaleTile::block_128x128:
      return "128x128";
    case ScaleTile::mx_1x32:
      return "MX";
  }
  return "?";
}

std::int64_t GemmPlan::tiles() const { return m == 0 || n == 0 ? 0 : ceil_div(m, tile_m) * ceil_div(n, tile_n); }

GemmPlan plan_gemm(const Gemm& op) {
  // Multiples of the width of every scale and of a tile's K. The chunks of a tile just fit into the second-level cache.
  constexpr std::int64_t kChunk = 384, kStep = 32;
  GemmPlan plan;
  plan.m = op.a.rows();
  plan.n = op.b.rows();
  plan.k = op.a.k();
  if (plan.m == 0 || plan.n == 0) return plan;
  cut_tiles(plan);
  const DType dtype = op.a.values.dtype;
  if (is_fp8(dtype) || dtype == DType::bf16) {
    plan.chunk_k = std::min(round_up(plan.k, kStep), kChunk);
    plan.tile_elements = round_up(cpu::tile_elements(op), 16);
  }
  return plan;
}

void gemm(Stream& stream, Arena& scratch, const Gemm& op) {
  check(op, stream.target());
  const GemmPlan plan = plan_gemm(op);
  stream.count(profile_name(op), work_of(op, plan));
  if (plan.tiles() == 0) return;

  const ArenaScope scope(scratch);
  if (stream.target() == DeviceKind::cuda) {
    [[maybe_unused]] void* const memory = scratch.allocate(cuda::gemm_scratch_bytes(op));
    if constexpr (kCudaBackend) {
      if (stream.kind() == DeviceKind::cuda) cuda::gemm(stream, op, memory);
    }
    return;
  }
  const std::int64_t lanes = cpu::lanes_for(plan.tiles());
  const std::size_t size = op.d.dtype == DType::f64 ? sizeof(double) : sizeof(float);
  void* memory = scratch.allocate(static_cast<std::size_t>(lanes * plan.lane_elements()) * size);

  if (stream.kind() == DeviceKind::cpu) stream.call([=] { cpu::gemms({&op, 1}, {&plan, 1}, lanes, memory); });
}

std::string gemm_library_version() {
  if constexpr (kCudaBackend) return cuda::gemm_library_version();
  return {};
}

void tune_gemms(Stream& stream, Arena& scratch, const GemmTuning& tuning) {
  if constexpr (kCudaBackend) {
    if (stream.kind() == DeviceKind::cuda) cuda::tune_gemms(stream, scratch, tuning);
  }
}

}  // namespace octet::kernels
