#include "octet/kernels/swiglu/swiglu.h"

#include "octet/device/cuda/cuda_device.h"
#include "octet/kernels/quantize/fusion_cuda.h"
#include "octet/kernels/swiglu/swiglu_cpu.h"
#include "octet/kernels/swiglu/swiglu_cuda.h"

namespace octet::kernels {
namespace {

// Checks gate_up [T, 2F] and y or gy [T, F].
void check_operands(const char* name, const Tensor& gate_up, const char* product_name, const Tensor& product) {
  require(gate_up.shape.rank() == 2 && gate_up.cols() % 2 == 0, name, ": gate_up must be [T, 2F], got ", gate_up.shape);
  require(product.shape == Shape{gate_up.rows(), gate_up.cols() / 2}, name, ": ", product_name, " must be [", gate_up.rows(),
          ", ", gate_up.cols() / 2, "], got ", product.shape);
  require(product.dtype == gate_up.dtype, name, ": gate_up is ", name_of(gate_up.dtype), ", ", product_name, " ",
          name_of(product.dtype));
}

// The rows up to the end of the last group, which the CPU computes.
Tensor rows_in_groups(const Tensor& x, const RowGroups& groups) {
  return groups && x ? x.slice_rows(0, groups.first.as<std::int32_t>()[groups.size()]) : x;
}
QuantizeEpilogue without_codes(const QuantizeEpilogue& to) { return {.spec = to.spec, .groups = to.groups}; }

}  // namespace

void swiglu_forward(Stream& stream, Arena& scratch, const SwigluForward& op) {
  const Fusion fused(stream, op.codes);
  if (op.codes && !fused) {
    return write_then_quantize(
        stream, scratch, op.codes, op.y, op.gate_up.dtype, {op.gate_up.rows(), op.gate_up.cols() / 2}, [&](const Tensor& y) {
          swiglu_forward(stream, scratch, {.gate_up = op.gate_up, .y = y, .codes = without_codes(op.codes)});
        });
  }
  if (!fused) check_operands("swiglu_forward", op.gate_up, "y", op.y);
  const int reads = fused.needs_amax_pass() ? 2 : 1;
  const double share = op.codes.groups.planned_share();
  stream.count("swiglu_forward", {.flops = share * 2.5 * static_cast<double>(op.gate_up.elements()),
                                  .bytes = share * (reads * static_cast<double>(op.gate_up.bytes()) + fused.result_bytes(op.y))});
  const ArenaScope scope(scratch);
  float* const amaxes = fused.allocate_amaxes(scratch, op.gate_up.rows(), op.gate_up.cols() / 2);
  if (stream.kind() == DeviceKind::cpu) {
    stream.call([=] {
      const RowGroups& groups = op.codes.groups;
      cpu::swiglu_forward({.gate_up = rows_in_groups(op.gate_up, groups), .y = rows_in_groups(op.y, groups)});
    });
  }
  if constexpr (kCudaBackend) {
    if (stream.kind() == DeviceKind::cuda) cuda::swiglu_forward(stream, op, amaxes);
  }
}

void swiglu_backward(Stream& stream, Arena& scratch, const SwigluBackward& op) {
  check_operands("swiglu_backward", op.gate_up, "gy", op.gy);
  // The kernel computes both halves together, so a tile must not extend over both.
  const bool whole_tiles = !is_block(op.codes.spec.tile) || op.gy.cols() % 128 == 0;
  const Fusion fused = whole_tiles ? Fusion(stream, op.codes) : Fusion();
  if (op.codes && !fused) {
    return write_then_quantize(
        stream, scratch, op.codes, op.ggate_up, op.gate_up.dtype, op.gate_up.shape, [&](const Tensor& ggate_up) {
          swiglu_backward(stream, scratch,
                          {.gate_up = op.gate_up, .gy = op.gy, .ggate_up = ggate_up, .codes = without_codes(op.codes)});
        });
  }
  if (!fused) check_operands("swiglu_backward", op.ggate_up, "gy", op.gy);
  const int reads = fused.needs_amax_pass() ? 2 : 1;
  const double share = op.codes.groups.planned_share();
  stream.count("swiglu_backward", {.flops = share * 10.0 * static_cast<double>(op.gy.elements()),
                                   .bytes = share * (reads * static_cast<double>(op.gate_up.bytes() + op.gy.bytes()) +
                                                     fused.result_bytes(op.ggate_up))});
  const ArenaScope scope(scratch);
  float* const amaxes = fused.allocate_amaxes(scratch, op.gate_up.rows(), op.gate_up.cols());
  if (stream.kind() == DeviceKind::cpu) {
    stream.call([=] {
      const RowGroups& groups = op.codes.groups;
      cpu::swiglu_backward({.gate_up = rows_in_groups(op.gate_up, groups),
                            .gy = rows_in_groups(op.gy, groups),
                            .ggate_up = rows_in_groups(op.ggate_up, groups)});
    });
  }
  if constexpr (kCudaBackend) {
    if (stream.kind() == DeviceKind::cuda) cuda::swiglu_backward(stream, op, amaxes);
  }
}

}  // namespace octet::kernels
