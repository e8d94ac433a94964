#include "octet/kernels/rope/rope.h"

#include "octet/kernels/rope/rope_cpu.h"

namespace octet::kernels {

void rope(Queue& queue, const Rope& op) {
  require(op.head_dim > 0 && op.head_dim % 2 == 0, "rope: head_dim must be even and positive, got ", op.head_dim);
  require(op.x.shape.rank() == 2 && op.x.cols() % op.head_dim == 0, "rope: x must be [T, heads * ", op.head_dim, "], got ",
          op.x.shape);
  require(op.table.dtype == DType::f32 && op.table.shape.rank() == 2 && op.table.cols() == op.head_dim,
          "rope: table must be F32 [positions, ", op.head_dim, "], got ", name_of(op.table.dtype), " ", op.table.shape);
  require(op.positions.dtype == DType::i32 && op.positions.shape == Shape{op.x.rows()}, "rope: positions must be I32 [",
          op.x.rows(), "], got ", name_of(op.positions.dtype), " ", op.positions.shape);
  queue.count({.flops = 3.0 * static_cast<double>(op.x.elements()),
               .bytes = static_cast<double>(2 * op.x.bytes() + op.positions.bytes()) +
                        4.0 * static_cast<double>(op.x.rows() * op.head_dim)});
  if (queue.kind() == DeviceKind::cpu) cpu::rope(op);
}

}  // namespace octet::kernels
