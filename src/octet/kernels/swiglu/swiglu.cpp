#include "octet/kernels/swiglu/swiglu.h"

#include "octet/kernels/swiglu/swiglu_cpu.h"

namespace octet::kernels {
namespace {

// gate_up [T, 2F] and a tensor of its products [T, F].
void check_operands(const char* name, const Tensor& gate_up, const char* product_name, const Tensor& product) {
  require(gate_up.shape.rank() == 2 && gate_up.cols() % 2 == 0, name, ": gate_up must be [T, 2F], got ", gate_up.shape);
  require(product.shape == Shape{gate_up.rows(), gate_up.cols() / 2}, name, ": ", product_name, " must be [", gate_up.rows(),
          ", ", gate_up.cols() / 2, "], got ", product.shape);
  require(product.dtype == gate_up.dtype, name, ": gate_up is ", name_of(gate_up.dtype), ", ", product_name, " ",
          name_of(product.dtype));
}

}  // namespace

void swiglu_forward(Queue& queue, const SwigluForward& op) {
  check_operands("swiglu_forward", op.gate_up, "y", op.y);
  queue.count(
      {.flops = 5.0 * static_cast<double>(op.y.elements()), .bytes = static_cast<double>(op.gate_up.bytes() + op.y.bytes())});
  if (queue.kind() == DeviceKind::cpu) cpu::swiglu_forward(op);
}

void swiglu_backward(Queue& queue, const SwigluBackward& op) {
  check_operands("swiglu_backward", op.gate_up, "gy", op.gy);
  check_operands("swiglu_backward", op.ggate_up, "gy", op.gy);
  queue.count({.flops = 10.0 * static_cast<double>(op.gy.elements()),
               .bytes = static_cast<double>(op.gate_up.bytes() + op.gy.bytes() + op.ggate_up.bytes())});
  if (queue.kind() == DeviceKind::cpu) cpu::swiglu_backward(op);
}

}  // namespace octet::kernels
