// The choice that every op with a QuantizeEpilogue makes: its own kernel writes the codes (fused), or it writes values that
// quantize() reads.
#pragma once

#include "octet/kernels/quantize/quantize.h"
#include "octet/kernels/quantize/quantize_cuda.h"

namespace octet::kernels {

// True if the op's own kernel writes the codes. The meta device that stands for CUDA makes the same choice.
class Fusion {
 public:
  Fusion() = default;  // not fused
  // `to` must outlive this object.
  Fusion(const Stream& stream, const QuantizeEpilogue& to)
      : to_(stream.target() == DeviceKind::cuda && to && fuses_on_cuda(to) ? &to : nullptr) {}

  explicit operator bool() const { return to_ != nullptr; }
  // Whether a pass for the amaxes reads the source before the pass that writes the codes.
  bool needs_amax_pass() const { return to_ && needs_amax_first(to_->spec); }
  // Bytes of the codes and scales; 0 if not fused.
  std::size_t code_bytes() const { return to_ ? written_bytes(*to_) : 0; }
  // Bytes of the result: of the codes and scales if fused, otherwise of `values`.
  double result_bytes(const Tensor& values) const { return static_cast<double>(to_ ? code_bytes() : values.bytes()); }
  // Device memory for the amaxes of a result [rows, cols], as cuda::allocate_amaxes; null if not fused.
  float* allocate_amaxes(Arena& scratch, std::int64_t rows, std::int64_t cols) const {
    return to_ ? cuda::allocate_amaxes(scratch, to_->spec, rows, cols, to_->groups.size()) : nullptr;
  }

 private:
  const QuantizeEpilogue* to_ = nullptr;
};

// Calls write(values), which must overwrite `values`, and then quantises them. `values` is `y`, or scratch of `dtype` and `shape`
// if `y` is absent.
template <class Write>
void write_then_quantize(Stream& stream, Arena& scratch, const QuantizeEpilogue& to, const Tensor& y, DType dtype,
                         const Shape& shape, Write write) {
  const ArenaScope scope(scratch);
  const Tensor values = y ? y : allocate(scratch, dtype, shape);
  write(values);
  quantize(stream, scratch, to.of(values));
}

}  // namespace octet::kernels
