#include "octet/kernels/rope/rope.h"

#include "octet/device/cuda/cuda_device.h"
#include "octet/kernels/quantize/fusion_cuda.h"
#include "octet/kernels/rope/rope_cpu.h"
#include "octet/kernels/rope/rope_cuda.h"

namespace octet::kernels {

void rope(Stream& stream, Arena& scratch, const Rope& whole) {
  Rope op = whole;
  if (op.rotated == 0) op.rotated = op.x.cols();
  if (op.rotary_dim == 0) op.rotary_dim = op.head_dim;
  require(op.head_dim > 0 && op.head_dim % 2 == 0, "rope: head_dim must be even and positive, got ", op.head_dim);
  require(op.rotary_dim > 0 && op.rotary_dim % 2 == 0 && op.rotary_dim <= op.head_dim, "rope: ", op.rotary_dim,
          " dims to rotate of heads of ", op.head_dim, ": must be even and positive, and no more than there are");
  require(op.x.shape.rank() == 2 && op.x.cols() % op.head_dim == 0, "rope: x must be [T, heads * ", op.head_dim, "], got ",
          op.x.shape);
  require(op.rotated % op.head_dim == 0 && op.rotated <= op.x.cols(), "rope: ", op.rotated, " columns of ", op.x.shape,
          " to rotate");
  require(op.table.dtype == DType::f32 && op.table.shape.rank() == 2 && op.table.cols() == op.rotary_dim,
          "rope: table must be F32 [positions, ", op.rotary_dim, "], got ", name_of(op.table.dtype), " ", op.table.shape);
  require(op.positions.dtype == DType::i32 && op.positions.shape == Shape{op.x.rows()}, "rope: positions must be I32 [",
          op.x.rows(), "], got ", name_of(op.positions.dtype), " ", op.positions.shape);
  const Fusion fused(stream, whole.codes);
  if (!fused && op.rotated < op.x.cols()) op.x = op.x.slice_cols(0, op.rotated);
  const int reads = fused.needs_amax_pass() ? 2 : 1;
  stream.count("rope",
               {.flops = 3.0 * static_cast<double>(op.x.rows() * (op.rotated / op.head_dim) * op.rotary_dim),
                .bytes = reads * static_cast<double>(op.x.bytes()) + fused.result_bytes(op.x) +
                         static_cast<double>(op.positions.bytes()) + 4.0 * static_cast<double>(op.x.rows() * op.rotary_dim)});
  if (!fused) op.codes = {};
  const ArenaScope scope(scratch);
  float* const amaxes = fused.allocate_amaxes(scratch, op.x.rows(), op.x.cols());
  if (stream.kind() == DeviceKind::cpu) stream.call([=] { cpu::rope(op); });
  if constexpr (kCudaBackend) {
    if (stream.kind() == DeviceKind::cuda) cuda::rope(stream, op, amaxes);
  }
  if (whole.codes && !fused) quantize(stream, scratch, whole.codes.of(whole.x));
}

}  // namespace octet::kernels
