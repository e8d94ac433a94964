// Launches grouped products on Hopper: which variant of the kernel an operation asks for, and the tables that it reads.
#include <cuda.h>

#include "octet/device/cuda/cuda.h"
#include "octet/kernels/grouped_gemm/grouped_gemm_cuda.h"
#include "octet/kernels/grouped_gemm/grouped_product_cuda.cuh"
#include "octet/kernels/grouped_gemm/tensor_maps_cuda.h"

namespace octet::kernels::cuda {
namespace {

template <class V>
void launch(Stream& stream, const Product& p) {
  constexpr int kBytes = static_cast<int>(sizeof(Shared<V>)) + 1024;
  const cudaStream_t native = octet::cuda::native_stream(stream);
  octet::cuda::check(cudaFuncSetAttribute(grouped_product<V>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
                     "cudaFuncSetAttribute");
  grouped_product<V><<<static_cast<unsigned>(octet::cuda::multiprocessors_of(stream)), kThreads, kBytes, native>>>(p);
  octet::cuda::check_launch("grouped_product");
}

// Calls f.template operator()<Variant>() for the variant that these operands ask for.
template <bool kAlongM, class Out, class F>
void with_variant(const GemmOperand& a, const GemmOperand& b, Accumulation accumulation, F f) {
  const bool precise = accumulation == Accumulation::precise;
  const auto fp8 = [&]<Kind kKind>() {
    if (is_block(a.tile)) return f.template operator()<Variant<kKind, kAlongM, false, Scaling::blocks, true, Out>>();
    const auto scaled = [&]<Scaling kScaling>() {
      if (precise) return f.template operator()<Variant<kKind, kAlongM, false, kScaling, true, Out>>();
      f.template operator()<Variant<kKind, kAlongM, false, kScaling, false, Out>>();
    };
    if (a.tile == ScaleTile::row) return scaled.template operator()<Scaling::rows>();
    scaled.template operator()<Scaling::tensor>();
  };
  switch (a.values.dtype) {
    case DType::f8_e4m3:
      return fp8.template operator()<Kind::e4m3>();
    case DType::f8_e5m2:
      return fp8.template operator()<Kind::e5m2>();
    default:
      break;
  }
  if (kAlongM && b.layout == GemmOperand::Layout::k_last) {
    f.template operator()<Variant<Kind::bf16, kAlongM, false, Scaling::none, false, Out>>();
  } else {
    f.template operator()<Variant<Kind::bf16, kAlongM, true, Scaling::none, false, Out>>();
  }
}

// The map of a result, of which the rows of a warpgroup are copied.
CUtensorMap result_map(const Tensor& d) {
  return tensor_map(d, kSwizzleBytes / static_cast<int>(size_of(d.dtype)), kWarpgroupRows);
}

// The map of an operand of which boxes of `rows` (of M or N) and kStepBytes of K are copied.
CUtensorMap map_of(const GemmOperand& x, int rows) {
  const int step = kStepBytes / static_cast<int>(size_of(x.values.dtype));
  return x.layout == GemmOperand::Layout::k_last ? tensor_map(x.values, step, rows) : tensor_map(x.values, 64, step);
}

const float* scales_of(const GemmOperand& x) { return x.scale_inv ? x.scale_inv.as<float>() : nullptr; }

Product product_of(const RowGroups& groups) {
  Product p{};
  p.counts = groups.counts.as<std::int32_t>();
  p.first = groups.first.as<std::int32_t>();
  p.tiles = groups.tiles.as<std::int32_t>();
  p.groups = static_cast<int>(groups.size());
  p.rows = static_cast<int>(groups.rows());
  p.factor = 1.0f;
  return p;
}

// What is read of a group along M, in device memory: maps of all, then pointers to their scales.
struct TablesM {
  const CUtensorMap* maps;
  const float* const* scales;
};
TablesM tables_of(Stream& stream, const std::vector<GemmOperand>& b, int rows) {
  std::vector<std::uint64_t> key = {std::uint64_t(rows),
                                    std::uint64_t(b.front().layout),
                                    std::uint64_t(b.front().values.dtype),
                                    std::uint64_t(b.front().values.shape[0]),
                                    std::uint64_t(b.front().values.shape[1]),
                                    std::uint64_t(b.front().values.row_stride)};
  for (const GemmOperand& x : b) {
    key.push_back(reinterpret_cast<std::uint64_t>(x.values.data));
    key.push_back(reinterpret_cast<std::uint64_t>(x.scale_inv.data));
  }
  const void* const table =
      octet::cuda::extension<DeviceTables>(stream).get(stream, std::move(key), [&](std::vector<std::byte>& bytes) {
        for (const GemmOperand& x : b) append(bytes, map_of(x, rows));
        for (const GemmOperand& x : b) append(bytes, scales_of(x));
      });
  const auto* const maps = static_cast<const CUtensorMap*>(table);
  return {maps, reinterpret_cast<const float* const*>(maps + b.size())};
}

// The maps of the results of groups along K.
const CUtensorMap* maps_of(Stream& stream, const std::vector<Tensor>& d) {
  std::vector<std::uint64_t> key = {std::uint64_t(d.front().dtype), std::uint64_t(d.front().shape[0]),
                                    std::uint64_t(d.front().shape[1]), std::uint64_t(d.front().row_stride)};
  for (const Tensor& x : d) key.push_back(reinterpret_cast<std::uint64_t>(x.data));
  return static_cast<const CUtensorMap*>(
      octet::cuda::extension<DeviceTables>(stream).get(stream, std::move(key), [&](std::vector<std::byte>& bytes) {
        for (const Tensor& x : d) append(bytes, result_map(x));
      }));
}

template <class F>
void with_result(DType dtype, F f) {
  if (dtype == DType::f32) return f.template operator()<float>();
  f.template operator()<__nv_bfloat16>();
}

}  // namespace

void grouped_gemm_on_hopper(Stream& stream, const GroupedGemmM& op) {
  Product p = product_of(op.groups);
  const GemmOperand& b = op.b.front();
  p.n = static_cast<int>(b.rows());
  p.k = static_cast<int>(b.k());
  p.a = map_of(op.a, kM);
  p.scales_a = scales_of(op.a);
  p.scalar_b = b.tile == ScaleTile::tensor;
  p.d = result_map(op.d);
  p.accumulate = op.accumulate;
  p.factor = op.factor;
  with_result(op.d.dtype, [&]<class Out>() {
    with_variant<true, Out>(op.a, b, op.accumulation, [&]<class V>() {
      const TablesM tables = tables_of(stream, op.b, kN);
      p.maps_b = tables.maps;
      p.scales_b = tables.scales;
      launch<V>(stream, p);
    });
  });
}

void grouped_gemm_on_hopper(Stream& stream, const GroupedGemmK& op) {
  Product p = product_of(op.groups);
  p.m = static_cast<int>(op.a.rows());
  p.n = static_cast<int>(op.b.rows());
  p.a = map_of(op.a, kM);
  p.scales_a = scales_of(op.a);
  p.scales_b_along_k = scales_of(op.b);
  p.maps_d = maps_of(stream, op.d);
  p.accumulate = op.accumulate;
  with_result(op.d.front().dtype, [&]<class Out>() {
    with_variant<false, Out>(op.a, op.b, op.accumulation, [&]<class V>() {
      p.b = map_of(op.b, kN);
      launch<V>(stream, p);
    });
  });
}

}  // namespace octet::kernels::cuda
