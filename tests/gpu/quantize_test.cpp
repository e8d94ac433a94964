#include "octet/kernels/quantize/quantize.h"

#include <cmath>
#include <limits>
#include <vector>

#include "gpu/twins.h"
#include "support/bounds.h"
#include "support/quantize_cases.h"

namespace octet::kernels {
namespace {

using testing::Fill;
using testing::kFills;
using testing::quant_specs;
using testing::QuantizedTwin;
using testing::Twin;

struct QuantizeGpuTest : testing::TwinTest {
  enum class Parts { rows, columns, both };

  // Returns a tensor with `gap` elements between its rows.
  Twin source(DType dtype, std::int64_t rows, std::int64_t cols, Fill fill, std::int64_t gap) {
    const Twin whole =
        filled(dtype, {rows, cols + gap}, [&](std::int64_t i) { return testing::fill_value(fill, i, rows * (cols + gap)); });
    return {whole.cpu.slice_cols(0, cols), whole.gpu.slice_cols(0, cols)};
  }

  // If `tight`, columnwise has no padding.
  QuantizedTwin output(const QuantSpec& spec, std::int64_t rows, std::int64_t cols, Parts parts, bool tight) {
    QuantizedTwin out = quantized(spec, rows, cols);
    for (Quantized* side : {&out.cpu, &out.gpu}) {
      if (parts == Parts::rows) side->columnwise = side->columnwise_scale_inv = {};
      if (parts == Parts::columns) side->rowwise = side->rowwise_scale_inv = {};
      if (parts == Parts::rows || !tight) continue;
      side->columnwise = Tensor(side->columnwise.data, side->columnwise.dtype, {cols, rows});
      if (spec.tile == ScaleTile::mx_1x32) {
        side->columnwise_scale_inv = Tensor(side->columnwise_scale_inv.data, DType::e8m0, scale_shape(spec.tile, cols, rows));
      }
    }
    return out;
  }

  void check(const Twin& x, const QuantSpec& spec, Parts parts, bool tight, const std::string& what) {
    const bool history = spec.source == ScaleSource::history;
    const QuantizedTwin out = output(spec, x.cpu.rows(), x.cpu.shape[1], parts, tight);
    const Twin scale = filled(DType::f32, {1}, [](std::int64_t) { return 37.5; });
    const Twin amax = filled(DType::f32, {1}, [](std::int64_t) { return 0.25; });
    const auto quantize_side = [&](Stream& stream, Arena& scratch, auto side) {
      quantize(stream, scratch,
               {.x = side(x),
                .spec = spec,
                .out = side(out),
                .scale = history ? side(scale).template as<float>() : nullptr,
                .amax = history ? side(amax).template as<float>() : nullptr});
    };
    quantize_side(*cpu_stream, cpu_scratch, [](const auto& twin) { return twin.cpu; });
    quantize_side(*gpu_stream, gpu_scratch, [](const auto& twin) { return twin.gpu; });
    const auto expect = [&](const Tensor& expected, const Tensor& actual, const char* part) {
      if (expected) expect_same_bytes(expected, actual, what + " " + part);
    };
    expect(out.cpu.rowwise, out.gpu.rowwise, "codes");
    expect(out.cpu.columnwise, out.gpu.columnwise, "codes_t");
    expect(out.cpu.rowwise_scale_inv, out.gpu.rowwise_scale_inv, "scale_inv");
    expect(out.cpu.columnwise_scale_inv, out.gpu.columnwise_scale_inv, "scale_inv_t");
    if (history) expect(amax.cpu, amax.gpu, "amax");
  }
};

std::string name_of(const QuantSpec& spec, const Twin& x, Fill fill) {
  return testing::case_name(spec, x.cpu.shape, x.cpu.dtype, fill);
}

TEST_F(QuantizeGpuTest, TheSameBytesForEveryTileShapeAndValue) {
  for (const auto& [rows, cols] : std::vector<std::pair<std::int64_t, std::int64_t>>{
           {1, 16}, {37, 48}, {128, 128}, {200, 136}, {130, 257}, {31, 300}, {300, 1}, {257, 512}}) {
    for (const Fill fill : kFills) {
      for (const DType dtype : {DType::bf16, DType::f32}) {
        const Twin x = source(dtype, rows, cols, fill, fill == Fill::wide ? 7 : fill == Fill::nan ? 8 : 0);
        for (const QuantSpec& spec : quant_specs()) {
          check(x, spec, Parts::both, fill == Fill::normal, name_of(spec, x, fill));
          if (HasFailure()) return;
        }
      }
    }
  }
}

TEST_F(QuantizeGpuTest, EachPartAlone) {
  for (const auto& [rows, cols] : std::vector<std::pair<std::int64_t, std::int64_t>>{{200, 136}, {61, 45}}) {
    const Twin x = source(DType::bf16, rows, cols, Fill::nan, 0);
    for (const QuantSpec& spec : quant_specs()) {
      check(x, spec, Parts::rows, false, name_of(spec, x, Fill::nan) + " rows alone");
      check(x, spec, Parts::columns, false, name_of(spec, x, Fill::nan) + " columns alone");
    }
  }
}

TEST_F(QuantizeGpuTest, MatrixOfALargeLayer) {
  const Twin x = source(DType::bf16, 300, 4096, Fill::every_pattern, 0), w = source(DType::f32, 512, 1024, Fill::normal, 0);
  for (const QuantSpec& spec : quant_specs()) {
    check(x, spec, Parts::both, false, name_of(spec, x, Fill::every_pattern));
    check(w, spec, Parts::both, false, name_of(spec, w, Fill::normal));
  }
}

// CUDA's gridDim.y ends at 65,535.
constexpr std::int64_t kTallRows = 65536 * 128 + 1;

TEST_F(QuantizeGpuTest, MoreRowsOfTilesThanAGridIsHigh) {
  const Twin x = source(DType::bf16, kTallRows, 1, Fill::every_pattern, 0);
  const QuantSpec spec{.tile = ScaleTile::tensor, .source = ScaleSource::history};
  check(x, spec, Parts::both, false, name_of(spec, x, Fill::every_pattern));
}

TEST_F(QuantizeGpuTest, TransposedCodes) {
  for (const auto& [rows, cols] : std::vector<std::pair<std::int64_t, std::int64_t>>{
           {1, 1}, {37, 129}, {256, 144}, {130, 64}, {512, 1024}, {kTallRows, 1}}) {
    for (const ScaleTile tile : {ScaleTile::tensor, ScaleTile::block_128x128}) {
      const Twin x = source(DType::bf16, rows, cols, Fill::normal, 0);
      const QuantSpec spec{.format = Fp8Format::e4m3, .tile = tile};
      const QuantizedTwin out = output(spec, rows, cols, Parts::both, false), made = output(spec, rows, cols, Parts::both, false);
      quantize(*gpu_stream, gpu_scratch, {.x = x.gpu, .spec = spec, .out = out.gpu});
      Quantized rows_alone = made.gpu;
      rows_alone.columnwise = rows_alone.columnwise_scale_inv = {};
      quantize(*gpu_stream, gpu_scratch, {.x = x.gpu, .spec = spec, .out = rows_alone});
      transpose_codes(*gpu_stream, made.gpu);
      const std::string what = concat("tile ", static_cast<int>(tile), " of [", rows, ", ", cols, "]");
      expect_same_bytes(to_host(*gpu_stream, out.gpu.columnwise).view(), made.gpu.columnwise, what);
      expect_same_bytes(to_host(*gpu_stream, out.gpu.columnwise_scale_inv).view(), made.gpu.columnwise_scale_inv,
                        what + " scales");
    }
  }
}

TEST_F(QuantizeGpuTest, TensorsWithoutElements) {
  for (const auto& [rows, cols] : std::vector<std::pair<std::int64_t, std::int64_t>>{{0, 48}, {48, 0}}) {
    const Twin x = zeros(DType::bf16, {rows, cols});
    for (const QuantSpec& spec : quant_specs()) {
      if (spec.tile != ScaleTile::tensor) continue;
      check(x, spec, Parts::both, false, name_of(spec, x, Fill::zero));
    }
  }
}

// The scale is given and may be one that no rule computes.
TEST_F(QuantizeGpuTest, AnyGivenScale) {
  const Twin x = source(DType::bf16, 150, 160, Fill::every_pattern, 0);
  for (const double value : {1.0, 1e-40, 3e38, 0.0, HUGE_VAL}) {
    for (const Fp8Format format : {Fp8Format::e4m3, Fp8Format::e5m2}) {
      const QuantSpec spec{.format = format, .tile = ScaleTile::tensor, .source = ScaleSource::history};
      const Twin scale = filled(DType::f32, {1}, [&](std::int64_t) { return value; });
      const QuantizedTwin out = quantized(spec, 150, 160);
      quantize(*cpu_stream, cpu_scratch, {.x = x.cpu, .spec = spec, .out = out.cpu, .scale = scale.cpu.as<float>()});
      quantize(*gpu_stream, gpu_scratch, {.x = x.gpu, .spec = spec, .out = out.gpu, .scale = scale.gpu.as<float>()});
      expect_same_bytes(out, concat("scale ", value));
    }
  }
}

TEST_F(QuantizeGpuTest, Amax) {
  for (const Fill fill : kFills) {
    for (const DType dtype : {DType::bf16, DType::f32}) {
      const Twin x = source(dtype, 137, 211, fill, 5), result = poisoned(DType::f32, {1});
      amax(*cpu_stream, cpu_scratch, {.x = x.cpu, .amax = result.cpu.as<float>()});
      amax(*gpu_stream, gpu_scratch, {.x = x.gpu, .amax = result.gpu.as<float>()});
      expect_same_bytes(result, concat("fill ", static_cast<int>(fill)));
    }
  }
}

TEST_F(QuantizeGpuTest, DelayedScalesOverSteps) {
  constexpr std::int64_t kTensors = 9;
  const float hostile[] = {0.0f, HUGE_VALF, std::nanf(""), std::numeric_limits<float>::denorm_min()};
  for (const std::int64_t length : {1, 3, 256, 300, 1024}) {
    for (const bool most_recent : {false, true}) {
      const Twin history =
          filled(DType::f32, {kTensors, length}, [](std::int64_t i) { return i % 3 ? 0.0 : 1.0 + static_cast<double>(i % 57); });
      const Twin scale = filled(DType::f32, {kTensors}, [](std::int64_t) { return 1.0; });
      const Twin format = zeros(DType::u8, {kTensors}), is_weight = zeros(DType::u8, {kTensors});
      for (std::int64_t i = 0; i < kTensors; ++i) {
        format.cpu.as_bytes()[i] = i % 2 == 1;
        is_weight.cpu.as_bytes()[i] = i % 3 == 1;
      }
      upload(format);
      upload(is_weight);
      for (std::int64_t step = 0; step < 6; ++step) {
        for (std::int64_t i = 0; i < kTensors; ++i) {
          const bool bad = (i + step) % 4 == 0;
          history.cpu.as<float>()[i * length] =
              bad ? hostile[(i + step) / 4 % 4] : 0.5f + static_cast<float>((i * 7 + step * 3) % 11);
        }
        upload(history);
        const Twin found_inf = filled(DType::f32, {1}, [&](std::int64_t) { return step == 2 ? 1.0 : 0.0; });
        const auto update = [&](Stream& stream, auto side) {
          update_delayed_scales(stream, {.amax_history = side(history),
                                         .scale = side(scale),
                                         .format = side(format),
                                         .is_weight = side(is_weight),
                                         .margin = static_cast<int>(step) - 1,
                                         .most_recent = most_recent,
                                         .found_inf = side(found_inf).template as<float>()});
        };
        update(*cpu_stream, [](const Twin& twin) { return twin.cpu; });
        update(*gpu_stream, [](const Twin& twin) { return twin.gpu; });
        expect_same_bytes(history, concat("history of ", length, ", step ", step));
        expect_same_bytes(scale, concat("scale, history of ", length, ", step ", step));
      }
    }
  }
}

// The sides add up to n terms in F64 in different orders and round the result to F32 once. Their logarithms agree to a few F64
// ulp.
TEST_F(QuantizeGpuTest, Health) {
  for (const Fill fill : {Fill::normal, Fill::wide, Fill::zero, Fill::nan}) {
    const Twin x = source(DType::bf16, 201, 300, fill, 4);
    for (const QuantSpec& spec : quant_specs()) {
      if (spec.source == ScaleSource::history) continue;
      const QuantizedTwin q = quantized(spec, 201, 300);
      const Twin health = poisoned(DType::f32, {kHealthValues});
      quantize(*cpu_stream, cpu_scratch, {.x = x.cpu, .spec = spec, .out = q.cpu});
      quantize(*gpu_stream, gpu_scratch, {.x = x.gpu, .spec = spec, .out = q.gpu});
      quantize_health(*cpu_stream, cpu_scratch, {.x = x.cpu, .q = q.cpu, .out = health.cpu.as<float>()});
      quantize_health(*gpu_stream, gpu_scratch, {.x = x.gpu, .q = q.gpu, .out = health.gpu.as<float>()});
      expect_near(health, {.relative = gamma(3, kUnitRoundoffF32) + gamma(2.0 * 201 * 300, kUnitRoundoffF64)},
                  name_of(spec, x, fill));
    }
  }
}

}  // namespace
}  // namespace octet::kernels
