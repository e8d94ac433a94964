#include "octet/kernels/grouped_gemm/tensor_maps_cuda.h"

#include <cuda_runtime.h>

namespace octet::kernels::cuda {
namespace {

// The driver's function, found at run time, so that the program starts on machines without a driver.
decltype(&cuTensorMapEncodeTiled) encode_function() {
  static const auto function = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result{};
    octet::cuda::check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result),
                       "cudaGetDriverEntryPointByVersion");
    require(found && result == cudaDriverEntryPointSuccess, "the driver has no cuTensorMapEncodeTiled");
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found);
  }();
  return function;
}

}  // namespace

CUtensorMap tensor_map(const Tensor& x, int inner, int outer) {
  const std::size_t size = size_of(x.dtype);
  const cuuint64_t dims[] = {static_cast<cuuint64_t>(x.cols()), static_cast<cuuint64_t>(x.rows())};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(x.row_stride) * size};
  const cuuint32_t box[] = {static_cast<cuuint32_t>(inner), static_cast<cuuint32_t>(outer)}, steps[] = {1, 1};
  const CUtensorMapDataType type = size == 1   ? CU_TENSOR_MAP_DATA_TYPE_UINT8
                                   : size == 2 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                               : CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
  CUtensorMap map{};
  const CUresult result =
      encode_function()(&map, type, 2, x.data, dims, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                        CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  require(result == CUDA_SUCCESS, "cuTensorMapEncodeTiled: error ", static_cast<int>(result), " for ", x.shape, " with rows of ",
          strides[0], " bytes");
  return map;
}

DeviceTables::~DeviceTables() {
  for (const auto& [key, table] : tables_) cudaFree(table);
}

const void* DeviceTables::get(Stream& stream, std::vector<std::uint64_t> key, const Build& build) {
  const auto found = tables_.find(key);
  if (found != tables_.end()) return found->second;
  std::vector<std::byte> bytes;
  build(bytes);
  const cudaStream_t native = octet::cuda::native_stream(stream);
  void* table = nullptr;
  octet::cuda::check(cudaMalloc(&table, bytes.size()), "cudaMalloc");
  tables_.emplace(std::move(key), table);
  octet::cuda::check(cudaMemcpyAsync(table, bytes.data(), bytes.size(), cudaMemcpyHostToDevice, native), "cudaMemcpyAsync");
  octet::cuda::check(cudaStreamSynchronize(native), "cudaStreamSynchronize");  // the host's copy ends with this call
  return table;
}

}  // namespace octet::kernels::cuda
