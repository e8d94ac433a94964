#include "octet/kernels/layernorm/layernorm.h"

#include <cmath>
#include <vector>

#include "gpu/fused.h"
#include "support/bounds.h"

namespace octet::kernels {
namespace {

using testing::near;
using testing::Twin;
using testing::values_of;

struct LayerNormSize {
  std::int64_t rows, d;
};
// From one chunk to the longest rows. Some numbers of rows and columns are not whole chunks or tiles.
constexpr LayerNormSize kLayerNormSizes[] = {{1, 16},    {37, 45},    {5, 200},  {200, 136}, {130, 1000}, {300, 1024},
                                             {70, 2048}, {512, 4096}, {9, 8192}, {7, 12000}, {5, 16640},  {1850, 3840}};

struct LayerNormGpuTest : testing::FusedTest {
  struct Operands {
    Twin x, weight, bias, y, mean, rstd, gy, gx, gweight, gbias;
  };
  template <class Side>
  static LayerNormForward forward_of(const Operands& o, Side side) {
    return {.x = side(o.x),
            .weight = side(o.weight),
            .bias = side(o.bias),
            .y = side(o.y),
            .mean = side(o.mean),
            .rstd = side(o.rstd)};
  }
  template <class Side>
  static LayerNormBackward backward_of(const Operands& o, Side side) {
    return {.gy = side(o.gy),
            .x = side(o.x),
            .weight = side(o.weight),
            .mean = side(o.mean),
            .rstd = side(o.rstd),
            .gx = side(o.gx),
            .gweight = side(o.gweight),
            .gbias = side(o.gbias)};
  }
  static Tensor cpu_side(const Twin& t) { return t.cpu; }
  static Tensor gpu_side(const Twin& t) { return t.gpu; }

  Operands operands(const LayerNormSize& size, DType grad) {
    const std::int64_t rows = size.rows, d = size.d;
    const Operands o{.x = random(DType::bf16, {rows, d}),
                     .weight = random(DType::bf16, {d}),
                     .bias = random(DType::bf16, {d}),
                     .y = poisoned(DType::bf16, {rows, d}),
                     .mean = poisoned(DType::f32, {rows}),
                     .rstd = poisoned(DType::f32, {rows}),
                     .gy = random(DType::bf16, {rows, d}),
                     .gx = random(DType::bf16, {rows, d}),
                     .gweight = random(grad, {d}),
                     .gbias = random(grad, {d})};
    layernorm_forward(*cpu_stream, cpu_scratch, forward_of(o, cpu_side));
    layernorm_forward(*gpu_stream, gpu_scratch, forward_of(o, gpu_side));
    return o;
  }
};

// tests/kernels/layernorm_test.cpp derives the error of each side.
TEST_F(LayerNormGpuTest, ForwardAgreesWithTheCpu) {
  for (const LayerNormSize& size : kLayerNormSizes) {
    const Operands o = operands(size, DType::f32);
    const auto x = values_of(o.x.cpu), weight = values_of(o.weight.cpu), bias = values_of(o.bias.cpu),
               mean = values_of(o.mean.cpu), rstd = values_of(o.rstd.cpu), y = values_of(o.y.cpu);
    const auto d = static_cast<std::size_t>(size.d);
    const double sums = gamma(static_cast<double>(d) + 8, kUnitRoundoffF32);
    std::vector<double> mean_error(mean.size());
    for (std::size_t i = 0; i < x.size(); ++i) mean_error[i / d] += sums * std::abs(x[i]) / static_cast<double>(d);
    const auto rstd_error = [&](std::size_t t) { return sums + mean_error[t] * rstd[t]; };  // relative
    EXPECT_TRUE(near(values_of(fetch(o.mean.gpu).view()), mean, [&](std::size_t t) { return 2 * mean_error[t]; }))
        << o.x.cpu.shape;
    EXPECT_TRUE(near(values_of(fetch(o.rstd.gpu).view()), rstd, [&](std::size_t t) { return 3 * rstd_error(t) * rstd[t]; }))
        << o.x.cpu.shape;
    EXPECT_TRUE(near(
        values_of(fetch(o.y.gpu).view()), y,
        [&](std::size_t i) {
          const std::size_t t = i / d;
          const double n = std::abs(x[i] - mean[t]) * rstd[t], w = std::abs(weight[i % d]);
          const double error =
              w * (mean_error[t] * rstd[t] + n * (sums + rstd_error(t))) + sums * (n * w + std::abs(bias[i % d]));
          return 3 * error + 2 * kUnitRoundoffBf16 * (std::abs(y[i]) + 2 * error) / (1 - kUnitRoundoffBf16);
        },
        size.d))
        << o.x.cpu.shape;
  }
}

TEST_F(LayerNormGpuTest, BackwardAgreesWithTheCpu) {
  for (const LayerNormSize& size : kLayerNormSizes) {
    for (const DType grad : {DType::f32, DType::bf16}) {
      const Operands o = operands(size, grad);
      upload(o.mean);  // the CPU's, on both sides
      upload(o.rstd);
      const auto rows = static_cast<std::size_t>(size.rows), d = static_cast<std::size_t>(size.d);
      const auto x = values_of(o.x.cpu), weight = values_of(o.weight.cpu), mean = values_of(o.mean.cpu),
                 rstd = values_of(o.rstd.cpu), gy = values_of(o.gy.cpu);
      std::vector<double> gx_size = values_of(o.gx.cpu), gweight_size = values_of(o.gweight.cpu),
                          gbias_size = values_of(o.gbias.cpu);
      for (auto* sizes : {&gx_size, &gweight_size, &gbias_size}) {
        for (double& v : *sizes) v = std::abs(v);
      }
      const auto n_size = [&](std::size_t t, std::size_t i) { return rstd[t] * (std::abs(x[t * d + i]) + std::abs(mean[t])); };
      for (std::size_t t = 0; t < rows; ++t) {
        double sum_size = 0, dot_size = 0;
        for (std::size_t i = 0; i < d; ++i) {
          const double g = std::abs(gy[t * d + i] * weight[i]) / static_cast<double>(d);
          sum_size += g;
          dot_size += g * n_size(t, i);
        }
        for (std::size_t i = 0; i < d; ++i) {
          const double g = std::abs(gy[t * d + i]);
          gx_size[t * d + i] += rstd[t] * (g * std::abs(weight[i]) + sum_size + n_size(t, i) * dot_size);
          gweight_size[i] += g * n_size(t, i);
          gbias_size[i] += g;
        }
      }
      layernorm_backward(*cpu_stream, cpu_scratch, backward_of(o, cpu_side));
      layernorm_backward(*gpu_stream, gpu_scratch, backward_of(o, gpu_side));
      const auto expect_near_sums = [&](const Twin& twin, const std::vector<double>& sizes, double sums, double storage,
                                        std::int64_t cols, const char* name) {
        const auto expected = values_of(twin.cpu);
        EXPECT_TRUE(near(
            values_of(fetch(twin.gpu).view()), expected,
            [&](std::size_t i) {
              const double error = sums * sizes[i];
              return 2 * (error + storage * (std::abs(expected[i]) + 2 * error)) / (1 - storage);
            },
            cols))
            << name << " " << o.x.cpu.shape << " " << name_of(grad);
      };
      const double row_sums = gamma(static_cast<double>(d) + 10, kUnitRoundoffF32);
      const double column_sums = gamma(static_cast<double>(rows) + 6, kUnitRoundoffF32);
      const double storage = grad == DType::bf16 ? kUnitRoundoffBf16 : kUnitRoundoffF32;
      expect_near_sums(o.gx, gx_size, row_sums, kUnitRoundoffBf16, size.d, "gx");
      expect_near_sums(o.gweight, gweight_size, column_sums, storage, 0, "gweight");
      expect_near_sums(o.gbias, gbias_size, column_sums, storage, 0, "gbias");
    }
  }
}

TEST_F(LayerNormGpuTest, WritesTheCodesOfItsResults) {
  for (const LayerNormSize& size : {LayerNormSize{1, 16}, LayerNormSize{37, 45}, LayerNormSize{200, 136},
                                    LayerNormSize{130, 1000}, LayerNormSize{257, 4096}, LayerNormSize{129, 12000}}) {
    const Operands o = operands(size, DType::f32);
    const Twin mean = poisoned(DType::f32, {size.rows}), rstd = poisoned(DType::f32, {size.rows});
    const auto forward = [&](const Tensor& y, const QuantizeEpilogue& codes) {
      LayerNormForward op = forward_of(o, gpu_side);
      op.y = y;
      op.codes = codes;
      op.mean = mean.gpu;
      op.rstd = rstd.gpu;
      layernorm_forward(*gpu_stream, gpu_scratch, op);
    };
    expect_same_codes(
        size.rows, size.d, [&](const Tensor& y) { forward(y, {}); }, [&](const QuantizeEpilogue& codes) { forward({}, codes); },
        concat("forward ", o.x.cpu.shape));
    expect_equal(mean.gpu, o.mean.gpu, "mean");
    expect_equal(rstd.gpu, o.rstd.gpu, "rstd");
    const Twin again = poisoned(DType::bf16, {size.rows, size.d}), plain = poisoned(DType::bf16, {size.rows, size.d});
    const auto backward = [&](const Tensor& gx, const QuantizeEpilogue& codes) {
      gpu_stream->copy(gx.data, o.gx.gpu.data, o.gx.gpu.bytes());
      LayerNormBackward op = backward_of(o, gpu_side);
      op.gx = gx;
      op.codes = codes;
      layernorm_backward(*gpu_stream, gpu_scratch, op);
    };
    expect_same_codes(
        size.rows, size.d, [&](const Tensor& gx) { backward(gx, {}); },
        [&](const QuantizeEpilogue& codes) { backward(again.gpu, codes); }, concat("backward ", o.x.cpu.shape));
    backward(plain.gpu, {});
    expect_equal(again.gpu, plain.gpu, concat("gx beside its codes ", o.x.cpu.shape));
  }
}

TEST_F(LayerNormGpuTest, TheSameBitsAgain) {
  const Operands o = operands({300, 2048}, DType::f32);
  const Twin weight_before = random(DType::f32, {2048}), bias_before = random(DType::f32, {2048});
  std::vector<HostTensor> results;
  for (int run = 0; run < 3; ++run) {
    gpu_stream->copy(o.gweight.gpu.data, weight_before.gpu.data, weight_before.gpu.bytes());
    gpu_stream->copy(o.gbias.gpu.data, bias_before.gpu.data, bias_before.gpu.bytes());
    upload(o.gx);
    layernorm_backward(*gpu_stream, gpu_scratch, backward_of(o, gpu_side));
    for (const Twin& twin : {o.gx, o.gweight, o.gbias}) results.push_back(fetch(twin.gpu));
  }
  for (std::size_t i = 3; i < results.size(); ++i) EXPECT_TRUE(testing::same_bytes(results[i].view(), results[i % 3].view()));
}

}  // namespace
}  // namespace octet::kernels
