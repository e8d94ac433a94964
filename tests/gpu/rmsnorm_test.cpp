#include "octet/kernels/rmsnorm/rmsnorm.h"

#include <cmath>
#include <vector>

#include "gpu/fused.h"
#include "support/bounds.h"

namespace octet::kernels {
namespace {

using testing::near;
using testing::Twin;
using testing::values_of;

struct Size {
  std::int64_t rows, d;
};
// From one tile to more than a hundred in a row. Some numbers of rows and columns are not whole chunks or tiles.
constexpr Size kSizes[] = {{1, 16},     {37, 45},  {5, 200},   {200, 136}, {130, 1000}, {300, 1024}, {70, 2048},
                           {512, 4096}, {9, 8192}, {7, 12000}, {6, 16384}, {5, 16640},  {1850, 3840}};

// Some rows are shared by clusters of 8 to 16 blocks with two or four tiles each, of which the last is not full. Others are not
// shared.
constexpr Size kCodeSizes[] = {{1, 16},     {37, 45},    {200, 136}, {130, 1000}, {70, 2048},   {300, 1024},
                               {257, 4096}, {129, 8},    {1, 4096},  {128, 256},  {20, 264},    {130, 2056},
                               {140, 5120}, {131, 8192}, {30, 4104}, {70, 7400},  {129, 12000}, {33, 16384}};

struct RmsNormGpuTest : testing::FusedTest {
  struct Operands {
    Twin x, weight, y, rstd, gy, gx, gweight;
  };
  Operands operands(const Size& size, DType grad) {
    const std::int64_t rows = size.rows, d = size.d;
    const Operands o{.x = random(DType::bf16, {rows, d}),
                     .weight = random(DType::bf16, {d}),
                     .y = poisoned(DType::bf16, {rows, d}),
                     .rstd = poisoned(DType::f32, {rows}),
                     .gy = random(DType::bf16, {rows, d}),
                     .gx = random(DType::bf16, {rows, d}),
                     .gweight = random(grad, {d})};
    rmsnorm_forward(*cpu_stream, cpu_scratch, {.x = o.x.cpu, .weight = o.weight.cpu, .y = o.y.cpu, .rstd = o.rstd.cpu});
    rmsnorm_forward(*gpu_stream, gpu_scratch, {.x = o.x.gpu, .weight = o.weight.gpu, .y = o.y.gpu, .rstd = o.rstd.gpu});
    return o;
  }
  void backward_on_gpu(const Operands& o, const Tensor& gx, const QuantizeEpilogue& codes = {}) {
    rmsnorm_backward(*gpu_stream, gpu_scratch,
                     {.gy = o.gy.gpu,
                      .x = o.x.gpu,
                      .weight = o.weight.gpu,
                      .rstd = o.rstd.gpu,
                      .gx = gx,
                      .gweight = o.gweight.gpu,
                      .codes = codes});
  }
  void check_codes(const Size& size) {
    const Operands o = operands(size, DType::f32);
    const Twin rstd = poisoned(DType::f32, {size.rows});
    expect_same_codes(
        size.rows, size.d,
        [&](const Tensor& y) {
          rmsnorm_forward(*gpu_stream, gpu_scratch, {.x = o.x.gpu, .weight = o.weight.gpu, .y = y, .rstd = rstd.gpu});
        },
        [&](const QuantizeEpilogue& codes) {
          rmsnorm_forward(*gpu_stream, gpu_scratch, {.x = o.x.gpu, .weight = o.weight.gpu, .codes = codes, .rstd = rstd.gpu});
        },
        concat("forward ", o.x.cpu.shape));
    expect_equal(rstd.gpu, o.rstd.gpu, "rstd");
    const Twin again = poisoned(DType::bf16, {size.rows, size.d});
    const auto start = [&](const Tensor& gx) { gpu_stream->copy(gx.data, o.gx.gpu.data, o.gx.gpu.bytes()); };
    expect_same_codes(
        size.rows, size.d,
        [&](const Tensor& gx) {
          start(gx);
          backward_on_gpu(o, gx);
        },
        [&](const QuantizeEpilogue& codes) {
          start(again.gpu);
          backward_on_gpu(o, again.gpu, codes);
        },
        concat("backward ", o.x.cpu.shape));
    const Twin plain = poisoned(DType::bf16, {size.rows, size.d});
    start(plain.gpu);
    backward_on_gpu(o, plain.gpu);
    expect_equal(again.gpu, plain.gpu, concat("gx beside its codes ", o.x.cpu.shape));
  }
};

TEST_F(RmsNormGpuTest, ForwardAgreesWithTheCpu) {
  for (const Size& size : kSizes) {
    const Operands o = operands(size, DType::f32);
    // The relative error of each side is at most r; tests/kernels/rmsnorm_test.cpp derives it.
    const double r = gamma(static_cast<double>(size.d) + 8, kUnitRoundoffF32);
    const double stored = r + kUnitRoundoffBf16 * (1 + r);
    expect_near(o.rstd, {.relative = 2 * r / (1 - r)}, concat("rstd ", o.x.cpu.shape));
    expect_near(o.y, {.relative = 2 * stored / (1 - stored)}, concat("y ", o.x.cpu.shape));
  }
}

TEST_F(RmsNormGpuTest, BackwardAgreesWithTheCpu) {
  struct Case {
    DType grad;
    bool with_codes;
  };
  for (const Size& size : kSizes) {
    for (const auto& [grad, with_codes] : {Case{DType::f32, false}, Case{DType::bf16, false}, Case{DType::f32, true}}) {
      const Operands o = operands(size, grad);
      upload(o.rstd);  // the CPU's, on both sides
      const auto rows = static_cast<std::size_t>(size.rows), d = static_cast<std::size_t>(size.d);
      const auto x = values_of(o.x.cpu), weight = values_of(o.weight.cpu), rstd = values_of(o.rstd.cpu), gy = values_of(o.gy.cpu);
      std::vector<double> gx_size = values_of(o.gx.cpu), gweight_size = values_of(o.gweight.cpu);
      for (double& v : gx_size) v = std::abs(v);
      for (double& v : gweight_size) v = std::abs(v);
      for (std::size_t t = 0; t < rows; ++t) {
        double mean_size = 0;
        for (std::size_t i = 0; i < d; ++i)
          mean_size += std::abs(gy[t * d + i] * weight[i] * x[t * d + i] * rstd[t]) / static_cast<double>(d);
        for (std::size_t i = 0; i < d; ++i) {
          const double n = std::abs(x[t * d + i]) * rstd[t], g = std::abs(gy[t * d + i]);
          gx_size[t * d + i] += rstd[t] * (g * std::abs(weight[i]) + n * mean_size);
          gweight_size[i] += g * n;
        }
      }
      rmsnorm_backward(
          *cpu_stream, cpu_scratch,
          {.gy = o.gy.cpu, .x = o.x.cpu, .weight = o.weight.cpu, .rstd = o.rstd.cpu, .gx = o.gx.cpu, .gweight = o.gweight.cpu});
      QuantizeEpilogue codes{.spec = {.tile = ScaleTile::block_1x128, .power_of_2 = true}};
      if (with_codes) codes.out = quantized(codes.spec, size.rows, size.d).gpu;
      backward_on_gpu(o, o.gx.gpu, codes);
      const auto allowed = [](double sums, double size_of_terms, double result, double storage) {
        const double error = sums * size_of_terms;
        return 2 * (error + storage * (std::abs(result) + 2 * error)) / (1 - storage);
      };
      const auto gx = values_of(o.gx.cpu), gweight = values_of(o.gweight.cpu);
      const double row_sums = gamma(static_cast<double>(d) + 8, kUnitRoundoffF32);
      const double column_sums = gamma(static_cast<double>(rows) + 4, kUnitRoundoffF32);
      const double storage = grad == DType::bf16 ? kUnitRoundoffBf16 : kUnitRoundoffF32;
      EXPECT_TRUE(near(
          values_of(fetch(o.gx.gpu).view()), gx,
          [&](std::size_t i) { return allowed(row_sums, gx_size[i], gx[i], kUnitRoundoffBf16); }, size.d))
          << "gx " << o.x.cpu.shape;
      EXPECT_TRUE(near(values_of(fetch(o.gweight.gpu).view()), gweight,
                       [&](std::size_t i) { return allowed(column_sums, gweight_size[i], gweight[i], storage); }))
          << "gweight " << o.x.cpu.shape << " " << name_of(grad) << (with_codes ? " with codes" : "");
    }
  }
}

TEST_F(RmsNormGpuTest, StridedRows) {
  const std::int64_t rows = 70, d = 256;
  for (const std::int64_t gap : {3, 8}) {
    const Twin x = random(DType::bf16, {rows, d + gap}), weight = random(DType::bf16, {d});
    const Twin y = poisoned(DType::bf16, {rows, d + gap}), rstd = poisoned(DType::f32, {rows});
    const auto run = [&](Stream& stream, Arena& scratch, auto side) {
      rmsnorm_forward(stream, scratch,
                      {.x = side(x).slice_cols(0, d), .weight = side(weight), .y = side(y).slice_cols(0, d), .rstd = side(rstd)});
    };
    run(*cpu_stream, cpu_scratch, [](const Twin& t) { return t.cpu; });
    run(*gpu_stream, gpu_scratch, [](const Twin& t) { return t.gpu; });
    const double r = gamma(static_cast<double>(d) + 8, kUnitRoundoffF32) + kUnitRoundoffBf16;
    expect_near(y, {.relative = 3 * r}, concat("gap ", gap));
  }
}

// Each size is a test of its own, so that several processes of a sanitizer can share them.
struct RmsNormGpuCodes : RmsNormGpuTest, ::testing::WithParamInterface<Size> {};
TEST_P(RmsNormGpuCodes, AreThoseOfItsResult) { check_codes(GetParam()); }
INSTANTIATE_TEST_SUITE_P(Sizes, RmsNormGpuCodes, ::testing::ValuesIn(kCodeSizes),
                         [](const auto& param) { return concat(param.param.rows, "x", param.param.d); });

TEST_F(RmsNormGpuTest, WritesTheCodesOfMoreSlabsThanClusters) {
  for (const Size& size : {Size{1930, 4096}, Size{3700, 2048}}) check_codes(size);
}

// NaN in one row, or in the padding of a tile, must not change the codes of other rows.
TEST_F(RmsNormGpuTest, CodesOfHostileRows) {
  for (const Size& size : {Size{37, 45}, Size{130, 136}}) {
    const Rng rng(5, RngStream::test, 7);
    const Twin x = filled(DType::bf16, {size.rows, size.d}, [&](std::int64_t i) {
      const std::int64_t row = i / size.d;
      if (row == 3) return 0.0;
      if (i == 5 * size.d + 7) return HUGE_VAL;
      if (i == 9 * size.d + 1) return std::nan("");
      return (row == 11 ? 1e30 : 1.0) * rng.normal(static_cast<std::uint64_t>(i));
    });
    const Twin weight = random(DType::bf16, {size.d}), rstd = poisoned(DType::f32, {size.rows});
    const auto run = [&](const Tensor& y, const QuantizeEpilogue& codes) {
      rmsnorm_forward(*gpu_stream, gpu_scratch,
                      {.x = x.gpu, .weight = weight.gpu, .epsilon = 0.0, .y = y, .codes = codes, .rstd = rstd.gpu});
    };
    expect_same_codes(
        size.rows, size.d, [&](const Tensor& y) { run(y, {}); }, [&](const QuantizeEpilogue& codes) { run({}, codes); },
        concat("hostile ", x.cpu.shape));
  }
}

TEST_F(RmsNormGpuTest, TheSameBitsAgain) {
  const Size size{300, 2048};
  const Operands o = operands(size, DType::f32);
  const Twin before = random(DType::f32, {size.d});
  QuantizeEpilogue codes{.spec = {.tile = ScaleTile::block_1x128, .power_of_2 = true}};
  for (const bool with_codes : {false, true}) {
    if (with_codes) codes.out = quantized(codes.spec, size.rows, size.d).gpu;
    std::vector<HostTensor> results;
    for (int run = 0; run < 3; ++run) {
      gpu_stream->copy(o.gweight.gpu.data, before.gpu.data, before.gpu.bytes());
      upload(o.gx);
      backward_on_gpu(o, o.gx.gpu, codes);
      results.push_back(fetch(o.gx.gpu));
      results.push_back(fetch(o.gweight.gpu));
    }
    for (std::size_t i = 2; i < results.size(); ++i) EXPECT_TRUE(testing::same_bytes(results[i].view(), results[i % 2].view()));
  }
}

}  // namespace
}  // namespace octet::kernels
