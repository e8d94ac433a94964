// Tests producers that write codes. They must write the same bytes as quantize() of the values that they would have written.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "gpu/twins.h"
#include "octet/kernels/quantize/quantize.h"

namespace octet::testing {

class FusedTest : public TwinTest {
 protected:
  static std::vector<QuantSpec> fused_specs() {
    return {{.format = Fp8Format::e4m3, .tile = ScaleTile::tensor, .source = ScaleSource::history},
            {.format = Fp8Format::e5m2, .tile = ScaleTile::tensor, .source = ScaleSource::history},
            {.format = Fp8Format::e4m3, .tile = ScaleTile::tensor},
            {.format = Fp8Format::e5m2, .tile = ScaleTile::row},
            {.tile = ScaleTile::block_1x128, .power_of_2 = true},
            {.tile = ScaleTile::block_128x128, .power_of_2 = true}};
  }

  // `plain` writes y [rows, cols] on the GPU; `fused` writes the codes of y.
  void expect_same_codes(std::int64_t rows, std::int64_t cols, const std::function<void(const Tensor& y)>& plain,
                         const std::function<void(const kernels::QuantizeEpilogue&)>& fused, const std::string& what) {
    const Twin y = poisoned(DType::bf16, {rows, cols});
    plain(y.gpu);
    for (const QuantSpec& spec : fused_specs()) {
      const bool history = spec.source == ScaleSource::history;
      const Twin scale = filled(DType::f32, {1}, [](std::int64_t) { return 13.7; });
      const Twin first = zeros(DType::f32, {1}), second = zeros(DType::f32, {1});
      const auto to = [&](const Quantized& out, const Twin& amax) {
        return kernels::QuantizeEpilogue{.spec = spec,
                                         .out = out,
                                         .scale = history ? scale.gpu.as<float>() : nullptr,
                                         .amax = history ? amax.gpu.as<float>() : nullptr};
      };
      const Quantized composed = quantized(spec, rows, cols).gpu, direct = quantized(spec, rows, cols).gpu;
      kernels::quantize(*gpu_stream, gpu_scratch, to(composed, first).of(y.gpu));
      ASSERT_TRUE(kernels::fuses_on_cuda(to(direct, second)));
      fused(to(direct, second));
      const std::string part = what + ", tile " + std::to_string(static_cast<int>(spec.tile)) + " ";
      expect_equal(direct.rowwise, composed.rowwise, part + "codes");
      expect_equal(direct.columnwise, composed.columnwise, part + "codes_t");
      expect_equal(direct.rowwise_scale_inv, composed.rowwise_scale_inv, part + "scale_inv");
      expect_equal(direct.columnwise_scale_inv, composed.columnwise_scale_inv, part + "scale_inv_t");
      expect_equal(second.gpu, first.gpu, part + "amax");
      Quantized rows_only = quantized(spec, rows, cols).gpu, columns_only = quantized(spec, rows, cols).gpu;
      rows_only.columnwise = {};
      columns_only.rowwise = {};
      fused(to(rows_only, second));
      fused(to(columns_only, second));
      expect_equal(rows_only.rowwise, composed.rowwise, part + "codes alone");
      expect_equal(columns_only.columnwise, composed.columnwise, part + "codes_t alone");
    }
  }

  void expect_equal(const Tensor& actual, const Tensor& expected, const std::string& what) {
    expect_same_bytes(fetch(expected).view(), actual, what);
  }
};

}  // namespace octet::testing
