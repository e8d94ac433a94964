// cuBLASLt plans, one per kind of GEMM. A plan is made at its first use and kept as long as the device.
#pragma once

#include <cublasLt.h>

#include <compare>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "octet/device/cuda/cuda.h"
#include "octet/kernels/gemm/gemm_cuda.h"

namespace octet::kernels::cuda {

// The properties of a GEMM on which the choice of an algorithm depends.
struct ProductKey {
  struct Matrix {
    DType dtype = DType::bf16;
    std::int64_t stride = 0;  // elements between rows
    int alignment = 0;        // in bytes
    std::strong_ordering operator<=>(const Matrix&) const = default;
  };
  enum class Addend : std::uint8_t { none, d, other };

  std::int64_t m = 0, n = 0, k = 0;
  Matrix a, b, c, d;  // c equals d unless there is another addend
  GemmOperand::Layout a_layout{}, b_layout{};
  ScaleTile a_tile{}, b_tile{};  // for FP8 operands
  Addend addend = Addend::none;
  bool fast = false;
  bool same_on_ranks = false;  // the algorithm stays the library's first proposal
  std::strong_ordering operator<=>(const ProductKey&) const = default;

  bool fp8() const { return size_of(a.dtype) == 1; }
  // Shape and mode in words. Different keys have different texts.
  std::string text() const;
};

// The operands of a GEMM in memory. Scales have the layout that cuBLASLt reads; they are null for BF16.
struct ProductMemory {
  const void *a = nullptr, *a_scales = nullptr;
  const void *b = nullptr, *b_scales = nullptr;
  const void* c = nullptr;
  void* d = nullptr;
  float factor = 1.0f;        // of the product
  void* workspace = nullptr;  // kWorkspaceBytes
};

class ProductPlan {
 public:
  // `memory` provides the scales: without them, cuBLASLt proposes no algorithm.
  ProductPlan(cublasLtHandle_t library, const ProductKey& key, const ProductMemory& memory);

  // At most `count` algorithms, ordered by cuBLASLt's estimate of their speed, fastest first.
  std::vector<cublasLtMatmulAlgo_t> proposals(int count) const;
  // Whether this version of the library can run the algorithm for this GEMM on this GPU.
  bool accepts(const cublasLtMatmulAlgo_t& algorithm) const;
  cublasStatus_t run(const ProductMemory& memory, const cublasLtMatmulAlgo_t& algorithm, cudaStream_t stream) const;

  cublasLtMatmulAlgo_t algorithm{};
  bool tuned = false;

 private:
  template <auto kDestroy>
  struct Destroy {
    template <class T>
    void operator()(T* object) const {
      kDestroy(object);
    }
  };
  using Operation = std::unique_ptr<cublasLtMatmulDescOpaque_t, Destroy<cublasLtMatmulDescDestroy>>;
  using Layout = std::unique_ptr<cublasLtMatrixLayoutOpaque_t, Destroy<cublasLtMatrixLayoutDestroy>>;
  using Preference = std::unique_ptr<cublasLtMatmulPreferenceOpaque_t, Destroy<cublasLtMatmulPreferenceDestroy>>;

  static Layout make_layout(const ProductKey::Matrix& matrix, std::int64_t rows, std::int64_t columns);
  void set_scales(const ProductMemory& memory) const;

  cublasLtHandle_t library_;
  ProductKey key_;
  Operation operation_;
  Layout a_, b_, c_, d_;
  Preference preference_;
};

class GemmLibrary final : public octet::cuda::Extension {
 public:
  explicit GemmLibrary(Device&);
  ~GemmLibrary() override;
  GemmLibrary(const GemmLibrary&) = delete;
  GemmLibrary& operator=(const GemmLibrary&) = delete;

  void multiply(const ProductKey& key, const ProductMemory& memory, cudaStream_t stream);
  std::map<ProductKey, ProductPlan>& plans() { return plans_; }
  // Whether the GPU's tensor cores support MX operands.
  bool multiplies_mx() const { return multiplies_mx_; }

 private:
  cublasLtHandle_t handle_ = nullptr;
  bool multiplies_mx_ = false;
  std::map<ProductKey, ProductPlan> plans_;
};

}  // namespace octet::kernels::cuda
