#include "octet/kernels/grouped_gemm/grouped_gemm_cuda.h"

#include <cuda_runtime.h>

#include <algorithm>

#include "octet/device/cuda/cuda.h"
#include "octet/device/cuda/cuda_device.h"
#include "octet/kernels/gemm/gemm_cuda.h"
#include "octet/kernels/grouped_gemm/groups.h"

namespace octet::kernels::cuda {
namespace {

struct Architecture final : octet::cuda::Extension {
  explicit Architecture(Device& device) : is_hopper(cuda_properties(octet::cuda::index_of(device)).compute_capability == 90) {}
  bool is_hopper;
};

bool has_mx_tiles(const GemmOperand& x) { return size_of(x.values.dtype) == 1 && x.tile == ScaleTile::mx_1x32; }
// Whether TMA can copy the operand, and the kernel store its result.
bool is_aligned(const Tensor& x) {
  return reinterpret_cast<std::uintptr_t>(x.data) % 16 == 0 &&
         static_cast<std::size_t>(x.row_stride) * size_of(x.dtype) % 16 == 0;
}
bool has_kernel(Stream& stream, const GemmOperand& a, const GemmOperand& b, const Tensor& d) {
  return is_hopper(stream) && !has_mx_tiles(a) && d.cols() % 16 == 0 && is_aligned(a.values) && is_aligned(b.values) &&
         is_aligned(d) && a.values.dtype != DType::f32;
}

std::vector<GroupExtent> extents_on_host(Stream& stream, const RowGroups& groups) {
  std::vector<std::int32_t> counts(static_cast<std::size_t>(groups.size()));
  stream.copy_to_host(counts.data(), groups.counts.data, groups.counts.bytes());
  stream.synchronize();
  return extents_of(counts);
}

// Copies strided scales to `memory`, and moves `memory` behind them.
void make_contiguous(Stream& stream, GemmOperand& x, std::byte*& memory) {
  Tensor& scales = x.scale_inv;
  if (!scales || scales.contiguous()) return;
  const std::size_t size = size_of(scales.dtype), width = static_cast<std::size_t>(scales.cols()) * size;
  octet::cuda::check(
      cudaMemcpy2DAsync(memory, width, scales.data, static_cast<std::size_t>(scales.row_stride) * size, width,
                        static_cast<std::size_t>(scales.rows()), cudaMemcpyDeviceToDevice, octet::cuda::native_stream(stream)),
      "cudaMemcpy2DAsync");
  scales = Tensor(memory, scales.dtype, scales.shape);
  memory += round_up(static_cast<std::int64_t>(scales.bytes()), 256);
}

template <class Op>
void multiply_one_by_one(Stream& stream, const Op& op, void* scratch) {
  for (const GroupExtent& part : extents_on_host(stream, op.groups)) {
    Gemm product = product_of(op, part, part.padded());
    if (product.d.elements() == 0) continue;
    std::byte* memory = static_cast<std::byte*>(scratch) + gemm_scratch_bytes(product);
    make_contiguous(stream, product.a, memory);
    make_contiguous(stream, product.b, memory);
    gemm(stream, product, scratch);
  }
}

}  // namespace

bool is_hopper(Stream& stream) { return octet::cuda::extension<Architecture>(stream).is_hopper; }

void grouped_gemm(Stream& stream, const GroupedGemmM& op, void* scratch) {
  if (has_kernel(stream, op.a, op.b.front(), op.d)) return grouped_gemm_on_hopper(stream, op);
  multiply_one_by_one(stream, op, scratch);
}

void grouped_gemm(Stream& stream, const GroupedGemmK& op, void* scratch) {
  const bool aligned = std::all_of(op.d.begin(), op.d.end(), is_aligned);
  if (aligned && has_kernel(stream, op.a, op.b, op.d.front())) return grouped_gemm_on_hopper(stream, op);
  multiply_one_by_one(stream, op, scratch);
}

}  // namespace octet::kernels::cuda
