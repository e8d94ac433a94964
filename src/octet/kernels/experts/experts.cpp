#include "octet/kernels/experts/experts.h"

#include "octet/device/cuda/cuda_device.h"
#include "octet/kernels/experts/experts_cpu.h"
#include "octet/kernels/experts/experts_cuda.h"

namespace octet::kernels {
namespace {

void check_rows(const char* name, const Tensor& tokens, const Tensor& rows, const Tensor& packed) {
  require(rows.dtype == DType::i32 && rows.shape.rank() == 2 && rows.contiguous(), name, ": rows must be [T, k] I32, got ",
          rows.shape);
  require(tokens.shape.rank() == 2 && tokens.rows() == rows.rows() && packed.shape.rank() == 2 &&
              packed.cols() == tokens.cols() && packed.dtype == tokens.dtype,
          name, ": ", tokens.shape, " tokens, ", packed.shape, " of the experts and ", rows.shape, " rows");
}

void check_weights(const char* name, const Tensor& weights, const Tensor& rows, DType dtype) {
  const DType wanted = dtype == DType::f64 ? DType::f64 : DType::f32;
  require(weights.dtype == wanted && weights.shape == rows.shape && weights.contiguous(), name, ": weights must be ", rows.shape,
          " ", name_of(wanted), ", got ", weights.shape, " ", name_of(weights.dtype));
}

void check_codes(const char* name, const ExpertScatter& op) {
  const Tensor& codes = op.codes.out.rowwise;
  require(op.rows.dtype == DType::i32 && op.rows.shape.rank() == 2 && op.rows.contiguous() && op.experts.dtype == DType::i32 &&
              op.experts.shape == op.rows.shape && op.experts.contiguous(),
          name, ": rows and experts must be [T, k] I32, got ", op.rows.shape, " and ", op.experts.shape);
  require(op.x.dtype == DType::bf16 && op.x.rows() == op.rows.rows() && codes && codes.cols() == op.x.cols() &&
              codes.dtype == dtype_of(op.codes.spec.format) && !op.codes.out.columnwise && !op.codes.groups,
          name, ": ", op.x.shape, " tokens of ", name_of(op.x.dtype), " as codes ", codes.shape);
  require(op.codes.spec.tile == ScaleTile::tensor && op.codes.scale, name, ": codes need the scale of each expert");
}

double bytes_of_rows(const Tensor& tokens, std::int64_t rows) {
  return static_cast<double>(rows * tokens.cols()) * static_cast<double>(size_of(tokens.dtype));
}

}  // namespace

void expert_order(Stream& stream, const ExpertOrder& op) {
  constexpr const char* kName = "expert_order";
  require(op.experts.dtype == DType::i32 && op.experts.shape.rank() == 2 && op.experts.contiguous(), kName,
          ": experts must be [T, k] I32, got ", op.experts.shape);
  require(op.rows.dtype == DType::i32 && op.rows.shape == op.experts.shape && op.rows.contiguous(), kName, ": rows must be ",
          op.experts.shape, " I32, got ", op.rows.shape);
  require(op.counts.dtype == DType::i32 && op.counts.shape.rank() == 1 && op.multiple > 0, kName,
          ": counts must be [E] I32, got ", op.counts.shape);
  stream.count(kName, {.bytes = static_cast<double>(2 * op.experts.bytes())});
  if (stream.kind() == DeviceKind::cpu) stream.call([=] { cpu::expert_order(op); });
  if constexpr (kCudaBackend) {
    if (stream.kind() == DeviceKind::cuda) cuda::expert_order(stream, op);
  }
}

void group_rows(Stream& stream, const GroupRows& op) {
  const RowGroups& g = op.groups;
  for (const Tensor* x : {&g.counts, &g.first, &g.tiles})
    require(x->dtype == DType::i32 && x->shape.rank() == 1, "group_rows: numbers are I32 [n], got ", x->shape);
  require(g.first.rows() == g.size() + 1, "group_rows: ", g.size(), " groups begin at ", g.first.shape);
  stream.count("group_rows", {.bytes = static_cast<double>(g.counts.bytes() + g.first.bytes() + g.tiles.bytes())});
  if (stream.kind() == DeviceKind::cpu) stream.call([=] { cpu::group_rows(op); });
  if constexpr (kCudaBackend) {
    if (stream.kind() == DeviceKind::cuda) cuda::group_rows(stream, op);
  }
}

void clear_gaps(Stream& stream, const ClearGaps& op) {
  require(op.x.shape.rank() == 2 && op.x.rows() == op.groups.rows() && op.x.contiguous(), "clear_gaps: x ", op.x.shape, " of ",
          op.groups.rows(), " rows in groups");
  const std::int64_t gaps = op.groups.size() * kGroupRows / 2;  // what groups of random sizes have on average
  stream.count("clear_gaps", {.bytes = bytes_of_rows(op.x, std::min(gaps, op.x.rows()))});
  if (stream.kind() == DeviceKind::cpu) stream.call([=] { cpu::clear_gaps(op); });
  if constexpr (kCudaBackend) {
    if (stream.kind() == DeviceKind::cuda) cuda::clear_gaps(stream, op);
  }
}

void expert_scatter(Stream& stream, const ExpertScatter& op) {
  constexpr const char* kName = "expert_scatter";
  if (op.codes) {
    check_codes(kName, op);
  } else {
    check_rows(kName, op.x, op.rows, op.y);
  }
  if (op.weights) check_weights(kName, op.weights, op.rows, op.x.dtype);
  const Tensor& y = op.codes ? op.codes.out.rowwise : op.y;
  stream.count(kName, {.bytes = bytes_of_rows(op.x, op.x.rows()) + bytes_of_rows(y, op.rows.elements())});
  if (stream.kind() == DeviceKind::cpu) stream.call([=] { cpu::expert_scatter(op); });
  if constexpr (kCudaBackend) {
    if (stream.kind() == DeviceKind::cuda) cuda::expert_scatter(stream, op);
  }
}

void expert_amax(Stream& stream, const ExpertAmax& op) {
  constexpr const char* kName = "expert_amax";
  require(op.x.dtype == DType::bf16 && op.x.shape.rank() == 2 && op.experts.dtype == DType::i32 && op.experts.shape.rank() == 2 &&
              op.experts.contiguous() && op.x.rows() == op.experts.rows(),
          kName, ": ", op.x.shape, " tokens of ", name_of(op.x.dtype), " and ", op.experts.shape, " experts");
  require(op.amax.dtype == DType::f32 && op.amax.shape.rank() == 1, kName, ": amax must be F32 [E], got ", op.amax.shape);
  if (op.weights) check_weights(kName, op.weights, op.experts, op.x.dtype);
  stream.count(kName, {.bytes = bytes_of_rows(op.x, op.x.rows())});
  if (stream.kind() == DeviceKind::cpu) stream.call([=] { cpu::expert_amax(op); });
  if constexpr (kCudaBackend) {
    if (stream.kind() == DeviceKind::cuda) cuda::expert_amax(stream, op);
  }
}

void expert_combine(Stream& stream, const ExpertCombine& op) {
  constexpr const char* kName = "expert_combine";
  check_rows(kName, op.y, op.rows, op.x);
  if (op.weights) check_weights(kName, op.weights, op.rows, op.x.dtype);
  require(!op.residual || (op.residual.shape == op.y.shape && op.residual.dtype == op.y.dtype), kName, ": the residual is ",
          op.residual.shape, ", y ", op.y.shape);
  stream.count(kName, {.bytes = bytes_of_rows(op.y, (op.residual ? 2 : 1) * op.y.rows() + op.rows.elements())});
  if (stream.kind() == DeviceKind::cpu) stream.call([=] { cpu::expert_combine(op); });
  if constexpr (kCudaBackend) {
    if (stream.kind() == DeviceKind::cuda) cuda::expert_combine(stream, op);
  }
}

void expert_dot(Stream& stream, const ExpertDot& op) {
  constexpr const char* kName = "expert_dot";
  check_rows(kName, op.gy, op.rows, op.x);
  check_weights(kName, op.gweights, op.rows, op.gy.dtype);
  stream.count(kName, {.bytes = bytes_of_rows(op.gy, op.gy.rows() + op.rows.elements())});
  if (stream.kind() == DeviceKind::cpu) stream.call([=] { cpu::expert_dot(op); });
  if constexpr (kCudaBackend) {
    if (stream.kind() == DeviceKind::cuda) cuda::expert_dot(stream, op);
  }
}

}  // namespace octet::kernels
