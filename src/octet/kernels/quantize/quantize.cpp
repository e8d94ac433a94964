#include "octet/kernels/quantize/quantize.h"

#include <algorithm>
#include <utility>

#include "octet/base/math.h"
#include "octet/device/cuda/cuda_device.h"
#include "octet/kernels/quantize/cast_list.h"
#include "octet/kernels/quantize/cast_list_cuda.h"
#include "octet/kernels/quantize/quantize_cpu.h"
#include "octet/kernels/quantize/quantize_cuda.h"
#include "octet/numerics/scale.h"

namespace octet::kernels {
namespace {

void check_source(const char* op, const Tensor& x) {
  require(x.shape.rank() == 2, op, ": x must be 2-D, got ", x.shape);
  require(x.dtype == DType::bf16 || x.dtype == DType::f32, op, ": x must be BF16 or F32, got ", name_of(x.dtype));
}

void check_scales(const char* what, const Tensor& scales, ScaleTile tile, const Shape& expected) {
  require(static_cast<bool>(scales), "quantize: ", what, " is missing");
  require(scales.dtype == scale_dtype(tile) && scales.shape == expected, "quantize: ", what, " must be ",
          name_of(scale_dtype(tile)), " ", expected, ", got ", name_of(scales.dtype), " ", scales.shape);
}
void check_scales(const char* what, const Tensor& scales, ScaleTile tile, std::int64_t rows, std::int64_t k) {
  check_scales(what, scales, tile, scale_shape(tile, rows, k));
}

void check(const Quantize& op) {
  check_source("quantize", op.x);
  const Quantized& out = op.out;
  const std::int64_t rows = op.x.rows(), cols = op.x.shape[1];
  require(out.format == op.spec.format && out.tile == op.spec.tile, "quantize: the output is of another format or tile");
  require(op.spec.tile != ScaleTile::mx_1x32 || op.spec.format == Fp8Format::e4m3, "quantize: MX scales are defined for E4M3");
  const bool per_tensor = op.spec.tile == ScaleTile::tensor;
  const bool from_history = per_tensor && op.spec.source == ScaleSource::history;
  require(from_history == (op.scale != nullptr),
          "quantize: a scale is given with the history of a per-tensor tile, and only then");
  require(per_tensor || !op.amax, "quantize: amax is recorded for a per-tensor tile");
  require(op.spec.tile == ScaleTile::tensor || op.spec.source == ScaleSource::tensor,
          "quantize: only a per-tensor tile has a history");
  require(out.rowwise || out.columnwise || op.x.elements() == 0, "quantize: neither codes nor codes_t is asked for");
  const std::int64_t groups = op.groups.size();
  require(groups == 0 || (rows == op.groups.rows() && op.spec.tile != ScaleTile::block_128x128), "quantize: ", rows,
          " rows in groups of ", groups == 0 ? 0 : op.groups.rows());
  if (out.rowwise) {
    require(out.rowwise.shape == op.x.shape && out.rowwise.dtype == dtype_of(out.format), "quantize: codes must be ",
            name_of(dtype_of(out.format)), " ", op.x.shape, ", got ", name_of(out.rowwise.dtype), " ", out.rowwise.shape);
  }
  if (out.columnwise) {
    const Shape& shape = out.columnwise.shape;
    require(shape.rank() == 2 && shape[0] == cols && shape[1] >= rows && shape[1] <= padded_k(rows, out.tile) &&
                out.columnwise.dtype == dtype_of(out.format),
            "quantize: codes_t must be ", name_of(dtype_of(out.format)), " [", cols, ", ", rows, " to ", padded_k(rows, out.tile),
            "], got ", name_of(out.columnwise.dtype), " ", shape);
  }
  // With one scale, either direction may hold it.
  const bool either = per_tensor && (out.rowwise_scale_inv || out.columnwise_scale_inv);
  if (either ? static_cast<bool>(out.rowwise_scale_inv) : static_cast<bool>(out.rowwise))
    check_scales("scale_inv", out.rowwise_scale_inv, out.tile, rowwise_scale_shape(out.tile, rows, cols, groups));
  if (either ? static_cast<bool>(out.columnwise_scale_inv) : static_cast<bool>(out.columnwise)) {
    const std::int64_t width = out.columnwise ? out.columnwise.shape[1] : rows;
    check_scales("scale_inv_t", out.columnwise_scale_inv, out.tile, columnwise_scale_shape(out.tile, width, cols, groups));
  }
  require(either || !per_tensor, "quantize: scale_inv is missing");
}

// x is read once, or twice if its amax must be known before the cast.
Work work_of(const Quantize& op) {
  double bytes = static_cast<double>(op.x.bytes()) * (needs_amax_first(op.spec) ? 2 : 1);
  if (op.out.rowwise) bytes += static_cast<double>(op.out.rowwise.bytes() + op.out.rowwise_scale_inv.bytes());
  if (op.out.columnwise) bytes += static_cast<double>(op.out.columnwise.bytes() + op.out.columnwise_scale_inv.bytes());
  return {.flops = 0, .fp8_flops = 0, .bytes = bytes * op.groups.planned_share()};
}

void run_cpu(const Quantize& op, float* current_amax) {
  if (op.groups) {
    for (const GroupExtent& part : extents_of(op.groups)) {
      if (part.count == 0) continue;
      Quantize one = op;
      one.groups = {};
      one.x = op.x.slice_rows(part.first, part.first + part.padded());
      one.out = group_of(op.out, part, part.padded());
      const auto group = static_cast<std::int64_t>(part.group);
      if (op.scale) one.scale = op.scale + group * op.scale_stride;
      if (op.amax) one.amax = op.amax + group * op.amax_stride;
      run_cpu(one, current_amax);
    }
    return;
  }
  switch (op.spec.tile) {
    case ScaleTile::tensor:
      if (op.spec.source == ScaleSource::history) {
        cpu::quantize_tensor(op.x, op.out, *op.scale, op.amax);
      } else {
        cpu::amax(op.x, current_amax);
        cpu::quantize_tensor(op.x, op.out, scale_from_amax(*current_amax, op.spec), op.amax);
      }
      break;
    case ScaleTile::block_128x128:
      cpu::quantize_blocks(op.x, op.spec, op.out);
      break;
    case ScaleTile::row:
    case ScaleTile::block_1x128:
    case ScaleTile::mx_1x32:
      if (op.out.rowwise) cpu::quantize_along_rows(op.x, op.spec, op.out);
      if (op.out.columnwise) cpu::quantize_along_columns(op.x, op.spec, op.out);
      break;
  }
  if (op.out.columnwise) cpu::pad_transposed(op.x, op.out);
}

}  // namespace

void quantize(Stream& stream, Arena& scratch, const Quantize& op) {
  check(op);
  stream.count("quantize", work_of(op));
  const ArenaScope scope(scratch);
  // The CPU computes row scales one after another and needs no amaxes in advance.
  const bool ahead = op.spec.tile == ScaleTile::tensor || stream.target() == DeviceKind::cuda;
  float* const amaxes = ahead ? cuda::allocate_amaxes(scratch, op.spec, op.x.rows(), op.x.shape[1], op.groups.size()) : nullptr;
  if (stream.kind() == DeviceKind::cpu) stream.call([=] { run_cpu(op, amaxes); });
  if constexpr (kCudaBackend) {
    if (stream.kind() == DeviceKind::cuda) cuda::quantize(stream, op, amaxes);
  }
}

template <>
CastList<Quantize>::CastList(Device& device, std::vector<Quantize> ops) : ops_(std::move(ops)) {
  std::vector<CastItem> items;
  std::vector<std::int64_t> chunks;
  for (const Quantize& op : ops_) {
    check(op);
    const QuantSpec &spec = op.spec, &first = ops_.front().spec;
    require(op.x.dtype == ops_.front().x.dtype && spec.format == first.format && spec.tile == first.tile &&
                spec.source == first.source && !op.groups,
            "quantize: a list with several kinds of casts");
    const std::int64_t rows = op.x.rows(), cols = op.x.shape[1];
    items.emplace_back();
    if constexpr (kCudaBackend) {
      if (device.kind() == DeviceKind::cuda) items.back() = cuda::item_of(op, amaxes_);
    }
    const bool nothing = op.x.elements() == 0 && spec.tile != ScaleTile::tensor && spec.tile != ScaleTile::row;
    constexpr std::int64_t kTile = 128;  // a chunk is a tile
    chunks.push_back(
        nothing ? 0 : std::max<std::int64_t>(1, ceil_div(rows, kTile)) * std::max<std::int64_t>(1, ceil_div(cols, kTile)));
    amaxes_ += cuda::count_amaxes(spec, rows, cols, 0);
    work_ += work_of(op);
  }
  table_ = OpTable<CastItem>(device, items, chunks);
}

void quantize(Stream& stream, Arena& scratch, const CastList<Quantize>& list) {
  if (list.ops().empty()) return;
  stream.count("quantize", list.work());
  const ArenaScope scope(scratch);
  if (stream.kind() == DeviceKind::cpu) {
    float* const current = static_cast<float*>(scratch.allocate(sizeof(float)));
    return stream.call([&list, current] {
      for (const Quantize& op : list.ops()) run_cpu(op, current);
    });
  }
  const bool ahead = stream.target() == DeviceKind::cuda;
  auto* const amaxes = static_cast<float*>(scratch.allocate(static_cast<std::size_t>(ahead ? list.amaxes() : 1) * sizeof(float)));
  if constexpr (kCudaBackend) {
    if (stream.kind() == DeviceKind::cuda) cuda::quantize(stream, list, amaxes);
  }
}

void transpose_codes(Stream& stream, const Quantized& q) {
  const std::int64_t rows = q.rowwise.rows(), cols = q.rowwise.shape[1];
  require(q.columnwise.rows() == cols && q.columnwise.shape[1] >= rows && q.columnwise.dtype == q.rowwise.dtype,
          "transpose_codes: codes ", q.rowwise.shape, " cannot become ", q.columnwise.shape);
  require(q.tile != ScaleTile::block_1x128, "transpose_codes: 1x128 codes along columns are not a weight's");
  if (is_square(q.tile)) {
    check_scales("scale_inv", q.rowwise_scale_inv, q.tile, rows, cols);
    check_scales("scale_inv_t", q.columnwise_scale_inv, q.tile, cols, q.columnwise.shape[1]);
  }
  stream.count("transpose_codes",
               {.flops = 0, .fp8_flops = 0, .bytes = static_cast<double>(q.rowwise.bytes() + q.columnwise.bytes())});
  if (stream.kind() == DeviceKind::cpu) stream.call([=] { cpu::transpose_codes(q); });
  if constexpr (kCudaBackend) {
    if (stream.kind() == DeviceKind::cuda) cuda::transpose_codes(stream, q);
  }
}

void complete_codes(Stream& stream, const QuantizeEpilogue& to) {
  const Quantized& q = to.out;
  const std::int64_t rows = q.rowwise.rows(), cols = q.rowwise.shape[1], groups = to.groups.size();
  require(to.spec.tile == ScaleTile::tensor && to.scale && q.rowwise.contiguous(),
          "complete_codes: needs rowwise codes with the scale of a history");
  require(groups == 0 || rows == to.groups.rows(), "complete_codes: ", rows, " rows in groups of ",
          groups == 0 ? 0 : to.groups.rows());
  check_scales("scale_inv", q.rowwise_scale_inv, q.tile, rowwise_scale_shape(q.tile, rows, cols, groups));
  require(!q.columnwise || (q.columnwise_scale_inv.data == q.rowwise_scale_inv.data && q.columnwise.rows() == cols &&
                            q.columnwise.shape[1] >= rows && q.columnwise.dtype == q.rowwise.dtype),
          "complete_codes: codes ", q.rowwise.shape, " cannot become ", q.columnwise.shape);
  stream.count("complete_codes", {.flops = 0,
                                  .fp8_flops = 0,
                                  .bytes = (q.columnwise ? static_cast<double>(q.rowwise.bytes() + q.columnwise.bytes()) : 0) *
                                           to.groups.planned_share()});
  if (stream.kind() == DeviceKind::cpu) stream.call([=] { cpu::complete_codes(to); });
  if constexpr (kCudaBackend) {
    if (stream.kind() == DeviceKind::cuda) cuda::complete_codes(stream, to);
  }
}

void decode_codes(Stream& stream, const DecodeCodes& op) {
  const Quantized& q = op.q;
  require(q.tile == ScaleTile::tensor && q.rowwise.contiguous() && op.y.dtype == DType::bf16 && op.y.shape == q.rowwise.shape,
          "decode_codes: ", name_of(q.rowwise.dtype), " ", q.rowwise.shape, " to ", name_of(op.y.dtype), " ", op.y.shape);
  check_scales("scale_inv", q.rowwise_scale_inv, q.tile, q.rowwise.rows(), q.rowwise.cols());
  stream.count("decode_codes", {.bytes = static_cast<double>(q.rowwise.bytes() + op.y.bytes())});
  if (stream.kind() == DeviceKind::cpu) stream.call([=] { cpu::decode_codes(op); });
  if constexpr (kCudaBackend) {
    if (stream.kind() == DeviceKind::cuda) cuda::decode_codes(stream, op);
  }
}

bool fuses_on_cuda(const QuantizeEpilogue& to) { return to.spec.tile != ScaleTile::mx_1x32; }

std::size_t written_bytes(const QuantizeEpilogue& to) {
  std::size_t bytes = 0;
  for (const Tensor* part : {&to.out.rowwise, &to.out.rowwise_scale_inv, &to.out.columnwise, &to.out.columnwise_scale_inv}) {
    if (*part) bytes += part->bytes();
  }
  return bytes;
}

void amax(Stream& stream, Arena&, const Amax& op) {
  check_source("amax", op.x);
  stream.count("amax", {.flops = 0, .fp8_flops = 0, .bytes = static_cast<double>(op.x.bytes())});
  if (stream.kind() == DeviceKind::cpu) stream.call([=] { cpu::amax(op.x, op.amax); });
  if constexpr (kCudaBackend) {
    if (stream.kind() == DeviceKind::cuda) cuda::amax(stream, op);
  }
}

void update_delayed_scales(Stream& stream, const UpdateDelayedScales& op) {
  const Shape& shape = op.amax_history.shape;
  require(shape.rank() == 2 && shape[1] >= 1 && op.amax_history.dtype == DType::f32, "amax_history must be F32 [n, len], got ",
          name_of(op.amax_history.dtype), " ", shape);
  const Shape each{shape[0]};
  require(op.scale.shape == each && op.scale.dtype == DType::f32, "scale must be F32 ", each, ", got ", op.scale.shape);
  require(op.format.shape == each && op.format.dtype == DType::u8, "format must be U8 ", each, ", got ", op.format.shape);
  require(op.is_weight.shape == each && op.is_weight.dtype == DType::u8, "is_weight must be U8 ", each, ", got ",
          op.is_weight.shape);
  stream.count("update_delayed_scales",
               {.flops = 0, .fp8_flops = 0, .bytes = 2.0 * static_cast<double>(op.amax_history.bytes())});
  if (stream.kind() == DeviceKind::cpu) stream.call([=] { cpu::update_delayed_scales(op); });
  if constexpr (kCudaBackend) {
    if (stream.kind() == DeviceKind::cuda) cuda::update_delayed_scales(stream, op);
  }
}

void quantize_health(Stream& stream, Arena& scratch, const QuantizeHealth& op) {
  check_source("quantize_health", op.x);
  require(op.q.rowwise && op.q.rowwise.shape == op.x.shape, "quantize_health: codes must be ", op.x.shape, ", got ",
          op.q.rowwise.shape);
  check_scales("scale_inv", op.q.rowwise_scale_inv, op.q.tile, op.x.rows(), op.x.shape[1]);
  stream.count("quantize_health",
               {.flops = 0,
                .fp8_flops = 0,
                .bytes = static_cast<double>(op.x.bytes() + op.q.rowwise.bytes() + op.q.rowwise_scale_inv.bytes())});
  const ArenaScope scope(scratch);
  const auto runs = static_cast<std::size_t>(ceil_div(op.x.rows(), cpu::kHealthRows));
  auto* const sums = static_cast<cpu::HealthSums*>(scratch.allocate(runs * sizeof(cpu::HealthSums)));
  if (stream.kind() == DeviceKind::cpu) stream.call([=] { cpu::quantize_health(op, sums); });
  if constexpr (kCudaBackend) {
    if (stream.kind() == DeviceKind::cuda) cuda::quantize_health(stream, op, sums);
  }
}

}  // namespace octet::kernels
