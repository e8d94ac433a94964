#include "octet/kernels/gemm/gemm_cuda.h"

#include <algorithm>

#include "octet/base/math.h"
#include "octet/kernels/gemm/gemm_library_cuda.h"
#include "octet/kernels/gemm/gemm_low_rank_cuda.h"
#include "octet/kernels/gemm/gemm_mx_cuda.h"

namespace octet::kernels::cuda {
namespace {

bool is_fp8(const GemmOperand& x) { return size_of(x.values.dtype) == 1; }

// The operand in the form that cuBLASLt accepts. Data that must be rearranged are written to `memory`.
GemmOperand prepared(Stream& stream, const GemmOperand& x, bool multiplies_mx, void* memory) {
  GemmOperand result = x;
  if (needs_padded_scales(x)) {
    const std::int64_t lines = ceil_div(x.rows(), 128), blocks = ceil_div(x.k(), 128);
    const std::size_t width = static_cast<std::size_t>(blocks) * sizeof(float);
    const std::size_t padded = static_cast<std::size_t>(padded_blocks(x.k())) * sizeof(float);
    stream.zero(memory, static_cast<std::size_t>(lines) * padded);
    octet::cuda::check(cudaMemcpy2DAsync(memory, padded, x.scale_inv.data, width, width, static_cast<std::size_t>(lines),
                                         cudaMemcpyDeviceToDevice, octet::cuda::native_stream(stream)),
                       "cudaMemcpy2DAsync");
    result.scale_inv.data = memory;
  } else if (is_fp8(x) && x.tile == ScaleTile::mx_1x32 && multiplies_mx) {
    tile_mx_scales(stream, x, static_cast<std::uint8_t*>(memory));
    result.scale_inv.data = memory;
  } else if (is_fp8(x) && x.tile == ScaleTile::mx_1x32) {
    decode_mx(stream, x, static_cast<BFloat16*>(memory));
    result = {.values = Tensor(memory, DType::bf16, {x.rows(), x.k()})};
    result.values.row_stride = decoded_mx_stride(x.k());
  }
  return result;
}

// Only a few alignment classes are distinguished, so that slices of one buffer share a plan. Fast copies need 16 bytes.
int alignment_of(const void* pointer) {
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  for (const int alignment : {256, 16, 8, 4, 2}) {
    if (address % static_cast<std::uintptr_t>(alignment) == 0) return alignment;
  }
  return 1;
}

ProductKey::Matrix matrix_of(const Tensor& x) { return {x.dtype, std::max(x.row_stride, x.shape[1]), alignment_of(x.data)}; }

ProductKey key_of(const GemmOperand& a, const GemmOperand& b, const Gemm& op) {
  ProductKey key{.m = a.rows(),
                 .n = b.rows(),
                 .k = a.k(),
                 .a = matrix_of(a.values),
                 .b = matrix_of(b.values),
                 .c = matrix_of(op.c ? op.c : op.d),
                 .d = matrix_of(op.d),
                 .a_layout = a.layout,
                 .b_layout = b.layout,
                 .same_on_ranks = op.same_on_ranks};
  if (op.c) key.addend = op.c.data == op.d.data ? ProductKey::Addend::d : ProductKey::Addend::other;
  if (key.fp8()) {
    key.a_tile = a.tile;
    key.b_tile = b.tile;
    // GEMMs with block tiles always promote their sums at every block.
    key.fast = op.accumulation == Accumulation::fast && (a.tile == ScaleTile::tensor || a.tile == ScaleTile::row);
  }
  return key;
}

// Reports problems for which cuBLASLt gives no message, or one that is hard to understand.
void check(const ProductKey& key, const GemmOperand& a, const GemmOperand& b) {
  const char* problem = nullptr;
  if (!key.fp8()) {
    const bool f32 = key.a.dtype == DType::f32 && key.d.dtype == DType::f32;
    if (key.a.dtype != DType::bf16 && !f32) problem = "operands on CUDA must be BF16 or FP8, or F32 with D in F32";
  } else if (std::min(alignment_of(a.scale_inv.data), alignment_of(b.scale_inv.data)) < 16) {
    problem = "scales must start at a multiple of 16 bytes";
  } else if (is_block(key.a_tile) && (key.m % 4 != 0 || key.n % 4 != 0)) {
    problem = "M and N must be multiples of 4 for block tiles";
  }
  if (problem) fail(ExitCode::internal, "gemm: ", problem, ": ", key.text());
}

// D = C, or 0 without C: the result for K = 0.
void store_addend(Stream& stream, const Gemm& op) {
  const std::size_t size = size_of(op.d.dtype), width = static_cast<std::size_t>(op.d.shape[1]) * size;
  const auto pitch = [&](const Tensor& x) { return static_cast<std::size_t>(std::max(x.row_stride, x.shape[1])) * size; };
  const auto rows = static_cast<std::size_t>(op.d.shape[0]);
  const cudaStream_t native = octet::cuda::native_stream(stream);
  if (!op.c) {
    octet::cuda::check(cudaMemset2DAsync(op.d.data, pitch(op.d), 0, width, rows, native), "cudaMemset2DAsync");
  } else if (op.c.data != op.d.data) {
    octet::cuda::check(
        cudaMemcpy2DAsync(op.d.data, pitch(op.d), op.c.data, pitch(op.c), width, rows, cudaMemcpyDeviceToDevice, native),
        "cudaMemcpy2DAsync");
  }
}

}  // namespace

void gemm(Stream& stream, const Gemm& op, void* scratch) {
  if (op.a.k() == 0) return store_addend(stream, op);
  if (is_low_rank(op)) return low_rank_gemm(stream, op);
  auto& library = octet::cuda::extension<GemmLibrary>(stream);
  auto* const memory = static_cast<std::byte*>(scratch) + kWorkspaceBytes;
  const GemmOperand a = prepared(stream, op.a, library.multiplies_mx(), memory);
  const GemmOperand b = prepared(stream, op.b, library.multiplies_mx(), memory + operand_scratch_bytes(op.a));
  const ProductKey key = key_of(a, b, op);
  check(key, a, b);
  library.multiply(key,
                   {.a = a.values.data,
                    .a_scales = a.scale_inv.data,
                    .b = b.values.data,
                    .b_scales = b.scale_inv.data,
                    .c = op.c ? op.c.data : op.d.data,
                    .d = op.d.data,
                    .factor = op.factor,
                    .workspace = scratch},
                   octet::cuda::native_stream(stream));
}

std::string gemm_library_version() {
  const std::size_t version = cublasLtGetVersion();  // 130100 is version 13.1.0
  return concat("cuBLASLt ", version / 10000, ".", version / 100 % 100, ".", version % 100);
}

}  // namespace octet::kernels::cuda
