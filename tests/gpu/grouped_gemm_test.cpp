#include "octet/kernels/grouped_gemm/grouped_gemm.h"

#include <cmath>

#include "gpu/twins.h"
#include "octet/kernels/experts/experts.h"
#include "octet/kernels/quantize/quantize.h"

namespace octet {
namespace {

using kernels::GemmOperand;
using testing::QuantizedTwin;
using testing::Twin;

const std::vector<std::int32_t> kCounts = {130, 0, 128, 5, 300, 0};

struct GroupsTwin {
  RowGroups cpu, gpu;
};
struct ProductTwin {
  GemmOperand cpu, gpu;
};

class GpuGroupedGemm : public testing::TwinTest {
 protected:
  GpuGroupedGemm() {
    std::int64_t all = 0;
    for (const std::int32_t count : kCounts) all += count;
    const auto n = static_cast<std::int64_t>(kCounts.size());
    rows_ = grouped_rows(all, n);
    const Twin counts = zeros(DType::i32, {n}), first = poisoned(DType::i32, {n + 1});
    const Twin tiles = poisoned(DType::i32, {rows_ / kGroupRows});
    std::copy(kCounts.begin(), kCounts.end(), counts.cpu.as<std::int32_t>());
    upload(counts);
    groups_ = {{counts.cpu, first.cpu, tiles.cpu, all}, {counts.gpu, first.gpu, tiles.gpu, all}};
    kernels::group_rows(*cpu_stream, {groups_.cpu});
    kernels::group_rows(*gpu_stream, {groups_.gpu});
    expect_same_bytes(first, "first");
    expect_same_bytes(tiles, "tiles");
  }

  // Values of all groups, zeros in their gaps, and NaN behind the last.
  Twin rows_of_groups(std::int64_t cols) {
    const Twin x = random(DType::bf16, {rows_, cols});
    const std::int32_t* const tiles = groups_.cpu.tiles.as<std::int32_t>();
    for (std::int64_t row = 0; row < rows_; ++row) {
      if (tiles[row / kGroupRows] >= 0) continue;
      std::memset(x.cpu.slice_rows(row, row + 1).data, 0xFF, static_cast<std::size_t>(cols) * 2);
    }
    kernels::clear_gaps(*cpu_stream, {groups_.cpu, x.cpu});
    upload(x);
    return x;
  }

  QuantizedTwin poisoned_codes(const QuantSpec& spec, std::int64_t cols) {
    const auto n = static_cast<std::int64_t>(kCounts.size());
    const Twin rowwise = poisoned(dtype_of(spec.format), {rows_, cols}),
               columnwise = poisoned(dtype_of(spec.format), {cols, rows_});
    const Twin scales = poisoned(scale_dtype(spec.tile), rowwise_scale_shape(spec.tile, rows_, cols, n));
    const Twin column_scales = spec.tile == ScaleTile::tensor
                                   ? scales
                                   : poisoned(scale_dtype(spec.tile), columnwise_scale_shape(spec.tile, rows_, cols, n));
    const auto side = [&](auto part) {
      return Quantized{.format = spec.format,
                       .tile = spec.tile,
                       .rowwise = part(rowwise),
                       .rowwise_scale_inv = part(scales),
                       .columnwise = part(columnwise),
                       .columnwise_scale_inv = part(column_scales)};
    };
    return {side([](const Twin& t) { return t.cpu; }), side([](const Twin& t) { return t.gpu; })};
  }

  // Quantises the rows of all groups on both sides and expects the same bytes.
  QuantizedTwin quantized_groups(const QuantSpec& spec, const Twin& x) {
    const QuantizedTwin q = poisoned_codes(spec, x.cpu.cols());
    const auto n = static_cast<std::int64_t>(kCounts.size());
    const bool history = spec.source == ScaleSource::history, tensor = spec.tile == ScaleTile::tensor;
    const Twin scale = filled(DType::f32, {3 * n}, [](std::int64_t i) { return 20.0 + static_cast<double>(i); });
    const Twin amax = zeros(DType::f32, {2 * n});
    const auto op = [&](const Tensor& values, const Quantized& out, const RowGroups& groups, const Tensor& scales,
                        const Tensor& amaxes) {
      return kernels::Quantize{.x = values,
                               .spec = spec,
                               .out = out,
                               .scale = history ? scales.as<float>() : nullptr,
                               .amax = tensor ? amaxes.as<float>() : nullptr,
                               .groups = groups,
                               .scale_stride = 3,
                               .amax_stride = 2};
    };
    kernels::quantize(*cpu_stream, cpu_scratch, op(x.cpu, q.cpu, groups_.cpu, scale.cpu, amax.cpu));
    kernels::quantize(*gpu_stream, gpu_scratch, op(x.gpu, q.gpu, groups_.gpu, scale.gpu, amax.gpu));
    const std::string what = "tile " + std::to_string(static_cast<int>(spec.tile));
    expect_same_bytes(q, what);
    expect_same_bytes(amax, what + " amax");
    return q;
  }

  // A weight's columnwise codes are not padded.
  QuantizedTwin weight_codes(const QuantSpec& spec, std::int64_t rows, std::int64_t cols) {
    QuantizedTwin q = quantized(spec, rows, cols);
    const Twin columnwise = poisoned(dtype_of(spec.format), {cols, rows});
    q.cpu.columnwise = columnwise.cpu;
    q.gpu.columnwise = columnwise.gpu;
    if (spec.tile == ScaleTile::tensor) return q;
    const Twin scales = poisoned(scale_dtype(spec.tile), scale_shape(spec.tile, cols, rows));
    q.cpu.columnwise_scale_inv = scales.cpu;
    q.gpu.columnwise_scale_inv = scales.gpu;
    return q;
  }

  // The products agree within the roundoff of sums of FP8 products in 14 bits, or of BF16 results.
  void expect_close(const Tensor& expected, const Tensor& on_gpu, const std::string& what) {
    const HostTensor actual = fetch(on_gpu);
    const std::vector<double> a = testing::values_of(expected), b = testing::values_of(actual.view());
    double error = 0, norm = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
      error += (a[i] - b[i]) * (a[i] - b[i]);
      norm += a[i] * a[i];
    }
    EXPECT_LE(std::sqrt(error), 4e-3 * std::sqrt(norm)) << what;
    EXPECT_GT(norm, 0) << what;
  }

  void multiply_along_m(const ProductTwin& a, const std::vector<ProductTwin>& b, DType out, Accumulation accumulation,
                        const std::string& what) {
    const Twin d = poisoned(out, {rows_, b.front().cpu.rows()});
    kernels::GroupedGemmM on_cpu{.groups = groups_.cpu, .a = a.cpu, .d = d.cpu, .accumulation = accumulation};
    kernels::GroupedGemmM on_gpu{.groups = groups_.gpu, .a = a.gpu, .d = d.gpu, .accumulation = accumulation};
    for (const ProductTwin& x : b) {
      on_cpu.b.push_back(x.cpu);
      on_gpu.b.push_back(x.gpu);
    }
    kernels::grouped_gemm(*cpu_stream, cpu_scratch, on_cpu);
    kernels::grouped_gemm(*gpu_stream, gpu_scratch, on_gpu);
    const std::int64_t end = groups_.cpu.first.as<std::int32_t>()[kCounts.size()];
    expect_close(d.cpu.slice_rows(0, end), d.gpu.slice_rows(0, end), what + " along M");
    expect_same_bytes(d.cpu.slice_rows(end, rows_), d.gpu.slice_rows(end, rows_), what + ": behind the groups");
  }

  void multiply_along_k(const ProductTwin& a, const ProductTwin& b, DType out, Accumulation accumulation,
                        const std::string& what) {
    for (const bool accumulate : {false, true}) {
      std::vector<Twin> d;
      kernels::GroupedGemmK on_cpu{
          .groups = groups_.cpu, .a = a.cpu, .b = b.cpu, .accumulate = accumulate, .accumulation = accumulation};
      kernels::GroupedGemmK on_gpu{
          .groups = groups_.gpu, .a = a.gpu, .b = b.gpu, .accumulate = accumulate, .accumulation = accumulation};
      for (std::size_t g = 0; g < kCounts.size(); ++g) {
        d.push_back(random(out, {a.cpu.rows(), b.cpu.rows()}));
        on_cpu.d.push_back(d.back().cpu);
        on_gpu.d.push_back(d.back().gpu);
      }
      kernels::grouped_gemm(*cpu_stream, cpu_scratch, on_cpu);
      kernels::grouped_gemm(*gpu_stream, gpu_scratch, on_gpu);
      for (std::size_t g = 0; g < kCounts.size(); ++g) {
        const std::string group = what + " along K, group " + std::to_string(g) + (accumulate ? ", added" : "");
        if (kCounts[g] > 0) {
          expect_close(d[g].cpu, d[g].gpu, group);
        } else {
          expect_same_bytes(d[g], group);
        }
      }
    }
  }

  std::int64_t rows_ = 0;
  GroupsTwin groups_;
};

TEST_F(GpuGroupedGemm, Bf16) {
  const Twin x = rows_of_groups(384), g = rows_of_groups(272);
  std::vector<ProductTwin> weights, transposed;
  for (std::size_t i = 0; i < kCounts.size(); ++i) {
    const Twin w = random(DType::bf16, {272, 384});
    weights.push_back({{.values = w.cpu}, {.values = w.gpu}});
    transposed.push_back({kernels::transposed_values(w.cpu), kernels::transposed_values(w.gpu)});
  }
  for (const DType out : {DType::bf16, DType::f32}) {
    multiply_along_m({{.values = x.cpu}, {.values = x.gpu}}, weights, out, Accumulation::precise, "fprop");
    multiply_along_m({{.values = g.cpu}, {.values = g.gpu}}, transposed, out, Accumulation::precise, "dgrad");
    multiply_along_k({kernels::transposed_values(g.cpu), kernels::transposed_values(g.gpu)},
                     {kernels::transposed_values(x.cpu), kernels::transposed_values(x.gpu)}, out, Accumulation::precise, "wgrad");
  }
}

// The products of adapters of rank 16 on two modules: few columns, parts of matrices, a factor, and sums that are added.
TEST_F(GpuGroupedGemm, ThinBf16) {
  constexpr std::int64_t kRank = 16, kWide = 384, kModule = 272;
  const Twin x = rows_of_groups(kWide), reduced = rows_of_groups(2 * kRank), y = rows_of_groups(2 * kModule);
  const auto second = [](const Tensor& t, std::int64_t width) { return t.slice_cols(width, 2 * width); };
  const Tensor of_cpu = second(reduced.cpu, kRank), of_gpu = second(reduced.gpu, kRank);
  kernels::GroupedGemmM on_cpu{.groups = groups_.cpu, .a = {.values = of_cpu}, .d = second(y.cpu, kModule), .accumulate = true};
  kernels::GroupedGemmM on_gpu{.groups = groups_.gpu, .a = {.values = of_gpu}, .d = second(y.gpu, kModule), .accumulate = true};
  on_cpu.factor = on_gpu.factor = 0.75f;
  std::vector<ProductTwin> narrow;
  for (std::size_t i = 0; i < kCounts.size(); ++i) {
    const Twin a = random(DType::bf16, {2 * kRank, kWide}), b = random(DType::bf16, {kModule, kRank});
    narrow.push_back({{.values = a.cpu}, {.values = a.gpu}});
    on_cpu.b.push_back({.values = b.cpu});
    on_gpu.b.push_back({.values = b.gpu});
  }
  multiply_along_m({{.values = x.cpu}, {.values = x.gpu}}, narrow, DType::bf16, Accumulation::precise, "reduced");
  kernels::grouped_gemm(*cpu_stream, cpu_scratch, on_cpu);
  kernels::grouped_gemm(*gpu_stream, gpu_scratch, on_gpu);
  const std::int64_t end = groups_.cpu.first.as<std::int32_t>()[kCounts.size()];
  expect_close(y.cpu.slice_rows(0, end), y.gpu.slice_rows(0, end), "added");
  const ProductTwin left{kernels::transposed_values(of_cpu), kernels::transposed_values(of_gpu)};
  const ProductTwin right{kernels::transposed_values(x.cpu), kernels::transposed_values(x.gpu)};
  multiply_along_k(left, right, DType::f32, Accumulation::precise, "gradient of A");
  multiply_along_k(right, left, DType::f32, Accumulation::precise, "gradient of B");
}

TEST_F(GpuGroupedGemm, Fp8) {
  struct Case {
    QuantSpec x, w, g;
  };
  const QuantSpec history{.tile = ScaleTile::tensor, .source = ScaleSource::history};
  const QuantSpec gradients{.format = Fp8Format::e5m2, .tile = ScaleTile::tensor, .source = ScaleSource::history};
  const QuantSpec rows{.tile = ScaleTile::row}, lines{.tile = ScaleTile::block_1x128, .power_of_2 = true};
  const QuantSpec blocks{.tile = ScaleTile::block_128x128, .power_of_2 = true}, mx{.tile = ScaleTile::mx_1x32};
  const QuantSpec current{.tile = ScaleTile::tensor}, tensor{.tile = ScaleTile::tensor};
  for (const Case& c : {Case{history, tensor, gradients}, Case{current, tensor, gradients}, Case{rows, rows, rows},
                        Case{rows, tensor, rows}, Case{lines, blocks, lines}, Case{mx, mx, mx}}) {
    const std::string what =
        "tiles " + std::to_string(static_cast<int>(c.x.tile)) + " and " + std::to_string(static_cast<int>(c.w.tile));
    const Twin x = rows_of_groups(384), g = rows_of_groups(272);
    const QuantizedTwin qx = quantized_groups(c.x, x), qg = quantized_groups(c.g, g);
    std::vector<ProductTwin> weights, transposed;
    for (std::size_t i = 0; i < kCounts.size(); ++i) {
      const Twin w = random(DType::bf16, {272, 384});
      const QuantizedTwin q = weight_codes(c.w, 272, 384);
      kernels::quantize(*cpu_stream, cpu_scratch, {.x = w.cpu, .spec = c.w, .out = q.cpu});
      kernels::quantize(*gpu_stream, gpu_scratch, {.x = w.gpu, .spec = c.w, .out = q.gpu});
      weights.push_back({kernels::row_operand(q.cpu), kernels::row_operand(q.gpu)});
      transposed.push_back({kernels::transposed_operand(q.cpu), kernels::transposed_operand(q.gpu)});
    }
    const ProductTwin of_x{kernels::row_operand(qx.cpu), kernels::row_operand(qx.gpu)};
    const ProductTwin of_g{kernels::row_operand(qg.cpu), kernels::row_operand(qg.gpu)};
    const ProductTwin x_t{kernels::transposed_operand(qx.cpu), kernels::transposed_operand(qx.gpu)};
    const ProductTwin g_t{kernels::transposed_operand(qg.cpu), kernels::transposed_operand(qg.gpu)};
    for (const Accumulation accumulation : {Accumulation::precise, Accumulation::fast}) {
      const std::string mode = what + (accumulation == Accumulation::fast ? ", fast" : ", precise");
      multiply_along_m(of_x, weights, DType::bf16, accumulation, mode + " fprop");
      multiply_along_m(of_g, transposed, DType::bf16, accumulation, mode + " dgrad");
      multiply_along_k(g_t, x_t, DType::f32, accumulation, mode + " wgrad");
      multiply_along_k(g_t, x_t, DType::bf16, accumulation, mode + " wgrad in BF16");
    }
  }
}

}  // namespace
}  // namespace octet
