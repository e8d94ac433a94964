#include "octet/kernels/gemm/gemm_library_cuda.h"

#include "octet/device/cuda/cuda_device.h"
#include "octet/kernels/gemm/gemm_plan.h"

namespace octet::kernels::cuda {
namespace {

void check(cublasStatus_t code, const char* call) {
  if (code != CUBLAS_STATUS_SUCCESS) fail(ExitCode::internal, call, ": ", cublasLtGetStatusString(code));
}

cudaDataType_t cuda_type(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return CUDA_R_32F;
    case DType::bf16:
      return CUDA_R_16BF;
    case DType::f8_e4m3:
      return CUDA_R_8F_E4M3;
    case DType::f8_e5m2:
      return CUDA_R_8F_E5M2;
    default:
      fail(ExitCode::internal, "gemm: no matrix of ", octet::name_of(dtype), " on CUDA");
  }
}

cublasLtMatmulMatrixScale_t scale_mode(ScaleTile tile) {
  switch (tile) {
    case ScaleTile::tensor:
      return CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
    case ScaleTile::row:
      return CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
    case ScaleTile::block_1x128:
      return CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
    case ScaleTile::block_128x128:
      return CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
    case ScaleTile::mx_1x32:
      break;
  }
  return CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0;
}

template <class T>
void set(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute, const T& value) {
  check(cublasLtMatmulDescSetAttribute(operation, attribute, &value, sizeof value), "cublasLtMatmulDescSetAttribute");
}

template <class T>
void set(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute, const T& value) {
  check(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value),
        "cublasLtMatmulPreferenceSetAttribute");
}

std::string text_of(const ProductKey::Matrix& x) {
  return concat(octet::name_of(x.dtype), " stride ", x.stride, " aligned ", x.alignment);
}

}  // namespace

std::string ProductKey::text() const {
  const auto operand = [&](const Matrix& x, GemmOperand::Layout layout, ScaleTile tile) {
    return text_of(x) + (layout == GemmOperand::Layout::k_last ? " K last" : " K first") +
           (fp8() ? concat(" ", name_of(tile)) : "");
  };
  return concat("[", m, ", ", k, "] x [", n, ", ", k, "], a ", operand(a, a_layout, a_tile), ", b ", operand(b, b_layout, b_tile),
                ", d ", text_of(d), addend == Addend::none ? "" : ", c " + (addend == Addend::d ? "d" : text_of(c)),
                fp8() ? (fast ? ", fast" : ", precise") : "", same_on_ranks ? ", the same on all ranks" : "");
}

// cuBLASLt uses column-major matrices, so a row-major matrix is its
// transpose there. cuBLASLt is asked for Dᵀ = B Aᵀ, with b as its A.
ProductPlan::ProductPlan(cublasLtHandle_t library, const ProductKey& key, const ProductMemory& memory)
    : library_(library), key_(key) {
  using Kind = GemmOperand::Layout;
  cublasLtMatmulDesc_t operation = nullptr;
  check(cublasLtMatmulDescCreate(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate");
  operation_.reset(operation);
  set(operation, CUBLASLT_MATMUL_DESC_TRANSA, key.b_layout == Kind::k_last ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(operation, CUBLASLT_MATMUL_DESC_TRANSB, key.a_layout == Kind::k_last ? CUBLAS_OP_N : CUBLAS_OP_T);
  if (key.fp8()) {
    set(operation, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, scale_mode(key.b_tile));
    set(operation, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, scale_mode(key.a_tile));
    set(operation, CUBLASLT_MATMUL_DESC_FAST_ACCUM, static_cast<std::int8_t>(key.fast));
    set_scales(memory);
  }
  const auto operand = [&](const ProductKey::Matrix& matrix, Kind kind, std::int64_t rows) {
    return kind == Kind::k_last ? make_layout(matrix, rows, key.k) : make_layout(matrix, key.k, rows);
  };
  a_ = operand(key.b, key.b_layout, key.n);
  b_ = operand(key.a, key.a_layout, key.m);
  c_ = make_layout(key.c, key.m, key.n);
  d_ = make_layout(key.d, key.m, key.n);

  cublasLtMatmulPreference_t preference = nullptr;
  check(cublasLtMatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate");
  preference_.reset(preference);
  set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{kWorkspaceBytes});
  // Partial sums stay in FP32. The other schemes would round them to D's BF16.
  set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, std::uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, static_cast<std::uint32_t>(key.b.alignment));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, static_cast<std::uint32_t>(key.a.alignment));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, static_cast<std::uint32_t>(key.c.alignment));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, static_cast<std::uint32_t>(key.d.alignment));

  const std::vector<cublasLtMatmulAlgo_t> first = proposals(1);
  if (first.empty()) fail(ExitCode::internal, "gemm: cuBLASLt has no algorithm for ", key.text());
  algorithm = first.front();
}

ProductPlan::Layout ProductPlan::make_layout(const ProductKey::Matrix& matrix, std::int64_t rows, std::int64_t columns) {
  cublasLtMatrixLayout_t layout = nullptr;
  check(cublasLtMatrixLayoutCreate(&layout, cuda_type(matrix.dtype), static_cast<std::uint64_t>(columns),
                                   static_cast<std::uint64_t>(rows), matrix.stride),
        "cublasLtMatrixLayoutCreate");
  return Layout(layout);
}

void ProductPlan::set_scales(const ProductMemory& memory) const {
  set(operation_.get(), CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, memory.b_scales);
  set(operation_.get(), CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, memory.a_scales);
}

std::vector<cublasLtMatmulAlgo_t> ProductPlan::proposals(int count) const {
  std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<std::size_t>(count));
  int found = 0;
  // cuBLASLt reports an unsupported GEMM with one of several error codes.
  if (cublasLtMatmulAlgoGetHeuristic(library_, operation_.get(), a_.get(), b_.get(), c_.get(), d_.get(), preference_.get(), count,
                                     results.data(), &found) != CUBLAS_STATUS_SUCCESS) {
    return {};
  }
  std::vector<cublasLtMatmulAlgo_t> algorithms;
  for (int i = 0; i < found; ++i) {
    const cublasLtMatmulHeuristicResult_t& result = results[static_cast<std::size_t>(i)];
    if (result.state == CUBLAS_STATUS_SUCCESS) algorithms.push_back(result.algo);
  }
  return algorithms;
}

bool ProductPlan::accepts(const cublasLtMatmulAlgo_t& candidate) const {
  cublasLtMatmulHeuristicResult_t result{};
  return cublasLtMatmulAlgoCheck(library_, operation_.get(), a_.get(), b_.get(), c_.get(), d_.get(), &candidate, &result) ==
             CUBLAS_STATUS_SUCCESS &&
         result.workspaceSize <= kWorkspaceBytes;
}

cublasStatus_t ProductPlan::run(const ProductMemory& memory, const cublasLtMatmulAlgo_t& chosen, cudaStream_t native) const {
  if (key_.fp8()) set_scales(memory);
  const float beta = key_.addend == ProductKey::Addend::none ? 0.0f : 1.0f;
  return cublasLtMatmul(library_, operation_.get(), &memory.factor, memory.b, a_.get(), memory.a, b_.get(), &beta, memory.c,
                        c_.get(), memory.d, d_.get(), &chosen, memory.workspace, kWorkspaceBytes, native);
}

GemmLibrary::GemmLibrary(Device& device)
    : multiplies_mx_(cuda_properties(octet::cuda::index_of(device)).compute_capability >= 100) {
  check(cublasLtCreate(&handle_), "cublasLtCreate");
}

GemmLibrary::~GemmLibrary() {
  plans_.clear();
  cublasLtDestroy(handle_);
}

void GemmLibrary::multiply(const ProductKey& key, const ProductMemory& memory, cudaStream_t native) {
  auto found = plans_.find(key);
  if (found == plans_.end()) found = plans_.emplace(key, ProductPlan(handle_, key, memory)).first;
  const cublasStatus_t code = found->second.run(memory, found->second.algorithm, native);
  if (code != CUBLAS_STATUS_SUCCESS)
    fail(ExitCode::internal, "cublasLtMatmul: ", cublasLtGetStatusString(code), ": ", key.text());
}

}  // namespace octet::kernels::cuda
