// Compares the codes of a parameter on a GPU with those on the CPU.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "octet/tensor/host_tensor.h"
#include "octet/tensor/quantized.h"
#include "support/near.h"

namespace octet::testing {

// [rows, cols] of one byte each as [cols, rows].
inline HostTensor transposed_codes(const Tensor& x) {
  HostTensor result(x.dtype, {x.cols(), x.rows()});
  std::uint8_t* const to = result.view().as_bytes();
  for (std::int64_t i = 0; i < x.rows(); ++i) {
    for (std::int64_t j = 0; j < x.cols(); ++j) to[j * x.rows() + i] = x.as_bytes()[i * x.row_stride + j];
  }
  return result;
}

// Expects that all codes and scales have the bits of the CPU's. Where the CPU keeps codes only once, because its products read
// them in both directions, the GPU's transposed codes must be the transpose of those.
inline void expect_same_codes(Stream& stream, const Quantized& on_gpu, const Quantized& on_cpu, const std::string& name) {
  const auto expect = [&](const Tensor& actual, const Tensor& expected, const char* part) {
    EXPECT_TRUE(same_bytes(to_host(stream, actual).view(), expected)) << name << ", " << part;
  };
  if (on_gpu.rowwise) expect(on_gpu.rowwise, on_cpu.rowwise, "codes");
  if (on_gpu.rowwise_scale_inv) expect(on_gpu.rowwise_scale_inv, on_cpu.rowwise_scale_inv, "scales");
  if (!on_gpu.columnwise) return;
  if (on_cpu.rowwise_serves_both()) {
    expect(on_gpu.columnwise, transposed_codes(on_cpu.rowwise).view(), "transposed codes");
  } else {
    expect(on_gpu.columnwise, on_cpu.columnwise, "transposed codes");
  }
}

}  // namespace octet::testing
