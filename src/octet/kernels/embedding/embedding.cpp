#include "octet/kernels/embedding/embedding.h"

#include <algorithm>

#include "octet/device/cuda/cuda_device.h"
#include "octet/kernels/embedding/embedding_cpu.h"
#include "octet/kernels/embedding/embedding_cuda.h"

namespace octet::kernels {
namespace {

void check_operands(const char* name, const Tensor& tokens, const char* rows_name, const Tensor& rows, const char* table_name,
                    const Tensor& table) {
  require(tokens.dtype == DType::i32 && tokens.shape.rank() == 1, name, ": tokens must be I32 [T], got ", name_of(tokens.dtype),
          " ", tokens.shape);
  require(table.shape.rank() == 2, name, ": ", table_name, " must be [V, D], got ", table.shape);
  require(rows.shape == Shape{tokens.rows(), table.cols()}, name, ": ", rows_name, " must be [", tokens.rows(), ", ",
          table.cols(), "], got ", rows.shape);
}

void check_part(const char* name, const Tensor& table, std::int64_t first, std::int64_t vocabulary) {
  require(vocabulary == 0 ? first == 0 : 0 <= first && first + table.rows() <= vocabulary, name, ": rows [", first, ", ",
          first + table.rows(), ") of a vocabulary of ", vocabulary);
}

}  // namespace

void embedding_forward(Stream& stream, const EmbeddingForward& op) {
  check_operands("embedding_forward", op.tokens, "y", op.y, "table", op.table);
  check_part("embedding_forward", op.table, op.first, op.vocabulary);
  require(op.y.dtype == op.table.dtype, "embedding_forward: the table is ", name_of(op.table.dtype), ", y ", name_of(op.y.dtype));
  stream.count("embedding_forward", {.bytes = static_cast<double>(op.tokens.bytes() + 2 * op.y.bytes())});
  if (stream.kind() == DeviceKind::cpu) stream.call([=] { cpu::embedding_forward(op); });
  if constexpr (kCudaBackend) {
    if (stream.kind() == DeviceKind::cuda) cuda::embedding_forward(stream, op);
  }
}

void embedding_backward(Stream& stream, Arena& scratch, const EmbeddingBackward& op) {
  check_operands("embedding_backward", op.tokens, "gy", op.gy, "gtable", op.gtable);
  check_part("embedding_backward", op.gtable, op.first, op.vocabulary);
  const ArenaScope scope(scratch);
  const bool on_gpu = kCudaBackend && stream.target() == DeviceKind::cuda;
  std::size_t bytes = static_cast<std::size_t>(op.tokens.rows()) * sizeof(std::int64_t);
  if constexpr (kCudaBackend) {
    if (on_gpu) bytes = cuda::embedding_scratch_bytes(op.tokens.rows());
  }
  void* const order = scratch.allocate(bytes);
  const double table_rows = static_cast<double>(std::min(op.tokens.rows(), op.gtable.rows()));
  stream.count("embedding_backward", {.flops = static_cast<double>(op.gy.elements()),
                                      .bytes = static_cast<double>(op.tokens.bytes() + op.gy.bytes()) +
                                               2.0 * table_rows * static_cast<double>(op.gtable.cols()) *
                                                   static_cast<double>(size_of(op.gtable.dtype))});
  if (stream.kind() == DeviceKind::cpu) stream.call([=] { cpu::embedding_backward(op, static_cast<std::int64_t*>(order)); });
  if constexpr (kCudaBackend) {
    if (stream.kind() == DeviceKind::cuda) cuda::embedding_backward(stream, op, order);
  }
}

}  // namespace octet::kernels
