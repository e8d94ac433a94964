#include "octet/kernels/gemm/gemm.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <vector>

#include "gpu/twins.h"
#include "octet/kernels/gemm/gemm_tuning.h"
#include "support/bounds.h"
#include "support/emulated_tiles.h"

namespace octet {
namespace {

using kernels::Gemm;
using kernels::gemm;
using kernels::GemmOperand;
using kernels::tune_gemms;
using testing::Twin;
using testing::values_of;
using Layout = GemmOperand::Layout;

struct OperandTwin {
  GemmOperand cpu, gpu;
};

enum class Addend { none, itself, other };
constexpr Addend kAddends[] = {Addend::none, Addend::itself, Addend::other};

// The way in which tensor cores add. An accumulator with `fraction_bits` sums `length` elements of K, `step` elements with each
// instruction. Such sums are then added in FP32.
//
// An instruction aligns its products and the sum so far to the largest of them. It drops all bits below a unit, which is
// 2^-fraction_bits of the largest number's binade. Operands have random signs, so a sum of L products is about
// t = sqrt(sum of their squares), and a unit is at most about 2^-fraction_bits t. Each product loses up to one unit of random
// sign, which makes sqrt(L / 3) units in all. Each of the L / step instructions takes half a unit on average from the sum, always
// towards zero. The relative RMS error is therefore at most
//   (sqrt(L) + L / step) 2^-fraction_bits,
// which is about twice the expected error. The bound also holds for a sum of such sums, because the squares of the errors and of
// the sums both add up. Additions in FP32, also those of the CPU, contribute at most sqrt(K) 2^-24.
struct Accumulator {
  double length, step;
  int fraction_bits;
  double error(std::int64_t k) const {
    const double used = std::min(length, static_cast<double>(k));
    return std::ldexp(std::sqrt(used) + used / step, -fraction_bits) + std::sqrt(static_cast<double>(k)) * kUnitRoundoffF32;
  }
};
// Hopper keeps 14 bits of FP8 sums (DeepSeek-V3 Technical Report, 2024, section 3.3.2); "precise" moves the sums to FP32 every
// 128 elements. BF16 products are added in FP32 without rounding to nearest.
constexpr Accumulator kFast{HUGE_VAL, 32, 13}, kPrecise{128, 32, 13}, kBf16{HUGE_VAL, 16, 23};
// The error of every element is below this multiple of the RMS error: six standard deviations of a sum whose partial sums reach
// at most 2 t.
constexpr double kWorstElement = 12;

class GpuGemm : public testing::TwinTest {
 protected:
  OperandTwin operand(const Twin& values, Layout layout = Layout::k_last) {
    return {{.values = values.cpu, .layout = layout}, {.values = values.gpu, .layout = layout}};
  }

  // Returns the codes of normal values that fill the format's range, with scales of several binades.
  OperandTwin fp8(Fp8Format format, ScaleTile tile, std::int64_t rows, std::int64_t k) {
    const Twin codes = zeros(dtype_of(format), {rows, k});
    const Rng rng(12, RngStream::test, ++subject_);
    const float deviation = fp8_max(format) / 8;
    for (std::int64_t i = 0; i < rows * k; ++i) {
      const double value = rng.normal(static_cast<std::uint64_t>(i));
      codes.cpu.as_bytes()[i] = encode_fp8(format, deviation * static_cast<float>(value));
    }
    upload(codes);
    return with_scales(codes, tile, [&](std::int64_t i) {
      return std::ldexp(1 + rng.uniform(static_cast<std::uint64_t>(i), 1), static_cast<int>(i % 4) - 10);
    });
  }
  OperandTwin with_scales(const Twin& codes, ScaleTile tile, const std::function<double(std::int64_t)>& value) {
    const Shape shape = scale_shape(tile, codes.cpu.rows(), codes.cpu.cols());
    Twin scales;
    if (tile == ScaleTile::mx_1x32) {
      scales = zeros(DType::e8m0, shape);
      for (std::int64_t i = 0; i < shape.elements(); ++i) {
        scales.cpu.as_bytes()[i] = encode_e8m0_up(static_cast<float>(value(i)));
      }
      upload(scales);
    } else {
      scales = filled(DType::f32, shape, value);
    }
    return {{.values = codes.cpu, .scale_inv = scales.cpu, .tile = tile},
            {.values = codes.gpu, .scale_inv = scales.gpu, .tile = tile}};
  }

  // Returns an operand as F32 [rows, K].
  Tensor decoded(const GemmOperand& x) {
    const bool k_last = x.layout == Layout::k_last;
    const std::int64_t rows = x.values.shape[k_last ? 0 : 1], k = x.values.shape[k_last ? 1 : 0];
    const Tensor result = zeros(DType::f32, {rows, k}).cpu;
    const std::vector<double> values = values_of(x.values);
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = 0; c < k; ++c) {
        const double value = values[static_cast<std::size_t>(k_last ? r * k + c : c * rows + r)];
        result.as<float>()[r * k + c] = static_cast<float>(value * scale_at(x, r, c));
      }
    }
    return result;
  }
  static double scale_at(const GemmOperand& x, std::int64_t row, std::int64_t k) {
    if (!x.scale_inv) return 1;
    const std::int64_t rows = x.values.shape[0], all = x.values.shape[1];
    const auto* scales = static_cast<const float*>(x.scale_inv.data);
    switch (x.tile) {
      case ScaleTile::tensor:
        return scales[0];
      case ScaleTile::row:
        return scales[row];
      case ScaleTile::block_1x128:
        return scales[k / 128 * rows + row];
      case ScaleTile::block_128x128:
        return scales[row / 128 * ceil_div(all, 128) + k / 128];
      case ScaleTile::mx_1x32:
        break;
    }
    return decode_e8m0(x.scale_inv.as_bytes()[row * ceil_div(all, 32) + k / 32]);
  }

  // Returns t for every element of a b.
  std::vector<double> sizes(const GemmOperand& a, const GemmOperand& b) {
    const auto squares = [&](const GemmOperand& x) {
      const Tensor values = decoded(x);
      for (std::int64_t i = 0; i < values.elements(); ++i) values.as<float>()[i] *= values.as<float>()[i];
      return GemmOperand{.values = values};
    };
    const GemmOperand a2 = squares(a), b2 = squares(b);
    const Tensor sums = zeros(DType::f32, {a2.values.rows(), b2.values.rows()}).cpu;
    gemm(*cpu_stream, cpu_scratch, {.a = a2, .b = b2, .d = sums});
    std::vector<double> result = values_of(sums);
    for (double& x : result) x = std::sqrt(x);
    return result;
  }

  // Multiplies on both sides. If `strided`, D and C are the first columns of wider tensors.
  struct Outcome {
    std::vector<double> expected, actual, c;
  };
  Outcome multiply(const OperandTwin& a, const OperandTwin& b, DType result, Addend addend, Accumulation accumulation,
                   bool strided) {
    const auto rows_of = [](const GemmOperand& x) { return x.values.shape[x.layout == Layout::k_last ? 0 : 1]; };
    const std::int64_t m = rows_of(a.cpu), n = rows_of(b.cpu), width = strided ? n + 24 : n;
    const auto columns = [&](const Tensor& x) { return x.slice_cols(0, n); };
    const Twin d = addend == Addend::itself ? random(result, {m, width}) : poisoned(result, {m, width});
    const Twin c = addend == Addend::other ? random(result, {m, width}) : addend == Addend::itself ? d : Twin{};
    const auto op = [&](const GemmOperand& left, const GemmOperand& right, const Tensor& addends, const Tensor& product) {
      Gemm whole{.a = left, .b = right, .d = columns(product), .accumulation = accumulation};
      if (addends) whole.c = columns(addends);
      return whole;
    };
    Outcome outcome;
    if (c.cpu) outcome.c = values_of(columns(c.cpu));
    const HostTensor before = fetch(d.gpu);
    gemm(*cpu_stream, cpu_scratch, op(a.cpu, b.cpu, c.cpu, d.cpu));
    gemm(*gpu_stream, gpu_scratch, op(a.gpu, b.gpu, c.gpu, d.gpu));
    const HostTensor after = fetch(d.gpu);
    EXPECT_TRUE(testing::same_bytes(after.view().slice_cols(n, width), before.view().slice_cols(n, width)));  // of other columns
    outcome.expected = values_of(columns(d.cpu));
    outcome.actual = values_of(columns(after.view()));
    return outcome;
  }

  void expect_products(const OperandTwin& a, const OperandTwin& b, Accumulator accumulator, Accumulation accumulation,
                       const std::string& what) {
    const std::vector<double> t = sizes(a.cpu, b.cpu);
    const double error = accumulator.error(a.cpu.values.shape[a.cpu.layout == Layout::k_last ? 1 : 0]);
    for (const DType result : {DType::f32, DType::bf16}) {
      for (const Addend addend : kAddends) {
        const Outcome o = multiply(a, b, result, addend, accumulation, addend != Addend::none);
        // Both sides add in FP32 and then round to the dtype of D.
        const double store = 2 * (result == DType::bf16 ? kUnitRoundoffBf16 : kUnitRoundoffF32) + 2 * kUnitRoundoffF32;
        // Some of cuBLASLt's algorithms round the product to BF16 before they add C in BF16.
        const double before_addend = result == DType::bf16 && addend != Addend::none ? kUnitRoundoffBf16 : 0.0;
        const auto rounding = [&](std::size_t i) {
          const double product = before_addend > 0 ? std::abs(o.expected[i] - o.c[i]) : 0.0;
          return store * std::max(std::abs(o.expected[i]), std::abs(o.actual[i])) + before_addend * product;
        };
        const std::string name =
            what + " " + std::string(name_of(result)) + " addend " + std::to_string(static_cast<int>(addend));
        EXPECT_TRUE(testing::near(
            o.actual, o.expected, [&](std::size_t i) { return kWorstElement * error * t[i] + rounding(i); },
            b.cpu.values.shape[b.cpu.layout == Layout::k_last ? 0 : 1]))
            << name;
        double squares = 0, allowed = 0;
        for (std::size_t i = 0; i < t.size(); ++i) {
          squares += std::pow(o.actual[i] - o.expected[i], 2);
          allowed += std::pow(error * t[i] + rounding(i), 2);
        }
        EXPECT_LE(squares, allowed) << name;
      }
    }
  }

  void expect_refused(const Gemm& op, const std::vector<std::string>& words) {
    try {
      gemm(*gpu_stream, gpu_scratch, op);
      ADD_FAILURE() << "accepted; expected: " << words.front();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::internal);
      for (const std::string& word : words) EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
    }
  }

 private:
  std::uint32_t subject_ = 0;
};

struct Mode {
  const char* name;
  Fp8Format a_format, b_format;
  ScaleTile a_tile, b_tile;
  Accumulation accumulation;
  Accumulator accumulator;
};
constexpr Fp8Format kE4m3 = Fp8Format::e4m3, kE5m2 = Fp8Format::e5m2;
constexpr Mode kModes[] = {
    {"tensor fast", kE4m3, kE4m3, ScaleTile::tensor, ScaleTile::tensor, Accumulation::fast, kFast},
    {"tensor precise", kE4m3, kE4m3, ScaleTile::tensor, ScaleTile::tensor, Accumulation::precise, kPrecise},
    {"tensor E5M2 x E4M3 precise", kE5m2, kE4m3, ScaleTile::tensor, ScaleTile::tensor, Accumulation::precise, kPrecise},
    {"tensor E4M3 x E5M2 fast", kE4m3, kE5m2, ScaleTile::tensor, ScaleTile::tensor, Accumulation::fast, kFast},
    {"row fast", kE4m3, kE4m3, ScaleTile::row, ScaleTile::row, Accumulation::fast, kFast},
    {"row precise", kE4m3, kE4m3, ScaleTile::row, ScaleTile::row, Accumulation::precise, kPrecise},
    {"1x128 x 128x128", kE4m3, kE4m3, ScaleTile::block_1x128, ScaleTile::block_128x128, Accumulation::precise, kPrecise},
    {"128x128 x 1x128", kE4m3, kE4m3, ScaleTile::block_128x128, ScaleTile::block_1x128, Accumulation::precise, kPrecise},
    {"1x128 x 1x128", kE4m3, kE4m3, ScaleTile::block_1x128, ScaleTile::block_1x128, Accumulation::precise, kPrecise},
    {"MX", kE4m3, kE4m3, ScaleTile::mx_1x32, ScaleTile::mx_1x32, Accumulation::precise, kBf16},
    {"MX E5M2 x E4M3", kE5m2, kE4m3, ScaleTile::mx_1x32, ScaleTile::mx_1x32, Accumulation::precise, kBf16},
};

TEST_F(GpuGemm, EveryScaleTile) {
  struct Size {
    std::int64_t m, n, k;
  };
  // K = 1408 has 11 blocks, for which 128x128 scales are laid out anew. N = 144 and 272 end within a block.
  for (const Size size : {Size{48, 272, 4096}, Size{80, 144, 1408}, Size{132, 16, 128}}) {
    for (const Mode& mode : kModes) {
      expect_products(fp8(mode.a_format, mode.a_tile, size.m, size.k), fp8(mode.b_format, mode.b_tile, size.n, size.k),
                      mode.accumulator, mode.accumulation, concat(mode.name, " [", size.m, ", ", size.n, ", ", size.k, "]"));
    }
  }
}

TEST_F(GpuGemm, LastBlockShorterThanItsScale) {
  for (const Mode& mode : kModes) {
    expect_products(fp8(mode.a_format, mode.a_tile, 64, 1104), fp8(mode.b_format, mode.b_tile, 80, 1104), mode.accumulator,
                    mode.accumulation, mode.name);
  }
}

// Only recipes with block tiles require a multiple of a number of rows.
TEST_F(GpuGemm, AnyNumberOfRows) {
  for (const Mode& mode : kModes) {
    if (is_block(mode.a_tile)) continue;
    for (const std::int64_t m : {1, 37}) {
      expect_products(fp8(mode.a_format, mode.a_tile, m, 256), fp8(mode.b_format, mode.b_tile, 64, 256), mode.accumulator,
                      mode.accumulation, concat(mode.name, " ", m, " rows"));
    }
  }
}

// Each sum has one term that is not zero, so it is exact. The test covers every code and shows that each scale is applied in its
// place.
TEST_F(GpuGemm, EveryCodeIsExact) {
  for (const Mode& mode : kModes) {
    const std::int64_t n = 256, k = 640;
    const Twin ones = zeros(dtype_of(mode.a_format), {16, k}), codes = zeros(dtype_of(mode.b_format), {n, k});
    std::fill_n(ones.cpu.as_bytes(), ones.cpu.bytes(), encode_fp8(mode.a_format, 1.0f));
    for (std::int64_t i = 0; i < n; ++i) codes.cpu.as_bytes()[i * k + i * 37 % k] = static_cast<std::uint8_t>(i);
    upload(ones);
    upload(codes);
    const auto power = [](std::int64_t i) { return std::ldexp(1.0, static_cast<int>(i % 23) - 11); };
    const Outcome o = multiply(with_scales(ones, mode.a_tile, power), with_scales(codes, mode.b_tile, power), DType::f32,
                               Addend::none, mode.accumulation, false);
    EXPECT_TRUE(testing::near(o.actual, o.expected, testing::Tolerance{}, n)) << mode.name;
  }
}

TEST_F(GpuGemm, MxScalesAtTheEndsOfTheirRange) {
  const testing::UseTileKernel none(nullptr);  // the tiles of a host's processor take results below 2^-126 as 0
  const std::int64_t n = 256, k = 32;
  const Twin ones = zeros(DType::f8_e4m3, {16, k}), codes = zeros(DType::f8_e4m3, {n, k}), scales = zeros(DType::e8m0, {n, 1});
  std::fill_n(ones.cpu.as_bytes(), ones.cpu.bytes(), encode_fp8(kE4m3, 1.0f));
  for (std::int64_t i = 0; i < n; ++i) {
    constexpr float kValues[] = {-448.0f, 1.875f, 1.5f * 0x1p-6f};  // with the scale 2 the last is a subnormal of BF16
    codes.cpu.as_bytes()[i * k + i % k] = encode_fp8(kE4m3, kValues[i % 3]);
    scales.cpu.as_bytes()[i] = static_cast<std::uint8_t>(i);
  }
  upload(ones);
  upload(codes);
  upload(scales);
  const OperandTwin b{{.values = codes.cpu, .scale_inv = scales.cpu, .tile = ScaleTile::mx_1x32},
                      {.values = codes.gpu, .scale_inv = scales.gpu, .tile = ScaleTile::mx_1x32}};
  const OperandTwin a = with_scales(ones, ScaleTile::mx_1x32, [](std::int64_t) { return 1.0; });
  const Outcome o = multiply(a, b, DType::f32, Addend::none, Accumulation::precise, false);
  EXPECT_TRUE(testing::near(o.actual, o.expected, testing::Tolerance{}, n));
}

// The products of adapters, which have a kernel of their own, and their neighbours, which do not.
TEST_F(GpuGemm, SmallK) {
  for (const std::int64_t k : {8, 16, 32, 48, 64, 80}) {
    for (const auto& [m, n] : {std::pair<std::int64_t, std::int64_t>{1, 128}, {37, 264}, {300, 136}, {129, 120}, {70, 1040}}) {
      for (const Layout layout : {Layout::k_last, Layout::k_first}) {
        const Twin wide = random(DType::bf16, {m, k + 16});  // A is one module's columns of what all have reduced
        const Twin b = random(DType::bf16, layout == Layout::k_last ? Shape{n, k} : Shape{k, n});
        const OperandTwin a{{.values = wide.cpu.slice_cols(16, 16 + k)}, {.values = wide.gpu.slice_cols(16, 16 + k)}};
        expect_products(a, operand(b, layout), kBf16, Accumulation::precise, concat(m, " x ", n, " x ", k));
      }
    }
  }
}

// The router of experts multiplies in full FP32, in the two layouts of its gradients.
TEST_F(GpuGemm, Fp32) {
  for (const auto& [m, n, k] : {std::array<std::int64_t, 3>{300, 64, 8}, {8, 96, 300}, {37, 45, 5}}) {
    for (const bool transposed : {false, true}) {
      const Twin a = transposed ? random(DType::f32, {k, m}) : random(DType::f32, {m, k}), b = random(DType::f32, {k, n});
      const Twin d = poisoned(DType::f32, {m, n});
      const auto layout = transposed ? GemmOperand::Layout::k_first : GemmOperand::Layout::k_last;
      const auto run = [&](Stream& stream, Arena& scratch, const Tensor& x, const Tensor& y, const Tensor& out) {
        gemm(stream, scratch,
             {.a = {.values = x, .layout = layout},
              .b = {.values = y, .layout = GemmOperand::Layout::k_first},
              .c = {},
              .d = out});
      };
      run(*cpu_stream, cpu_scratch, a.cpu, b.cpu, d.cpu);
      run(*gpu_stream, gpu_scratch, a.gpu, b.gpu, d.gpu);
      // Terms have magnitude 0.64 on average, and their sums are below 4 k. The error of TF32 would be 2^-11 of a term.
      const auto terms = static_cast<double>(k);
      expect_near(d, {.absolute = 2 * gamma(terms, kUnitRoundoffF32) * 4 * terms}, concat(m, " x ", n, " x ", k));
    }
  }
}

TEST_F(GpuGemm, FastAccumulationDiffersFromPrecise) {
  const OperandTwin a = fp8(kE4m3, ScaleTile::tensor, 128, 8192), b = fp8(kE4m3, ScaleTile::tensor, 256, 8192);
  const auto distance = [&](Accumulation accumulation) {
    const Outcome o = multiply(a, b, DType::f32, Addend::none, accumulation, false);
    return testing::relative_frobenius(o.actual, o.expected);
  };
  EXPECT_GT(distance(Accumulation::fast), 2 * distance(Accumulation::precise));
}

TEST_F(GpuGemm, Bf16LayoutsAndStrides) {
  struct Size {
    std::int64_t m, n, k;
  };
  for (const Size size : {Size{80, 144, 1024}, Size{37, 51, 471}, Size{1, 8, 3}}) {
    for (const std::int64_t gap : {0, 8, 5}) {
      for (const Layout a_layout : {Layout::k_last, Layout::k_first}) {
        for (const Layout b_layout : {Layout::k_last, Layout::k_first}) {
          const auto make = [&](std::int64_t rows, Layout layout) {
            const std::int64_t lines = layout == Layout::k_last ? rows : size.k,
                               columns = layout == Layout::k_last ? size.k : rows;
            const Twin wide = random(DType::bf16, {lines, columns + 2 * gap});
            return operand({wide.cpu.slice_cols(gap, gap + columns), wide.gpu.slice_cols(gap, gap + columns)}, layout);
          };
          expect_products(make(size.m, a_layout), make(size.n, b_layout), kBf16, Accumulation::precise,
                          concat("[", size.m, ", ", size.n, ", ", size.k, "] gap ", gap, " layouts ", static_cast<int>(a_layout),
                                 static_cast<int>(b_layout)));
        }
      }
    }
  }
}

TEST_F(GpuGemm, Fp8StridedRows) {
  const std::int64_t k = 256;
  const OperandTwin wide = fp8(kE4m3, ScaleTile::tensor, 48, 2 * k), b = fp8(kE4m3, ScaleTile::tensor, 64, k);
  OperandTwin a = wide;
  a.cpu.values = wide.cpu.values.slice_cols(k, 2 * k);
  a.gpu.values = wide.gpu.values.slice_cols(k, 2 * k);
  expect_products(a, b, kPrecise, Accumulation::precise, "strided");
}

TEST_F(GpuGemm, RealisticSize) {
  const std::int64_t m = 512, n = 1024, k = 4096;
  expect_products(fp8(kE4m3, ScaleTile::block_1x128, m, k), fp8(kE4m3, ScaleTile::block_128x128, n, k), kPrecise,
                  Accumulation::precise, "block");
}

TEST_F(GpuGemm, SumOfNoTermsIsZero) {
  for (const Addend addend : kAddends) {
    const OperandTwin a = operand(zeros(DType::bf16, {5, 0})), b = operand(zeros(DType::bf16, {8, 0}));
    const Outcome o = multiply(a, b, DType::f32, addend, Accumulation::precise, true);
    EXPECT_EQ(o.actual, addend == Addend::none ? std::vector<double>(40, 0.0) : o.c);
  }
}

TEST_F(GpuGemm, NanAndInfinityPassThroughAndGarbageInDDoesNot) {
  const std::int64_t m = 48, n = 64, k = 256;
  const OperandTwin a = fp8(kE5m2, ScaleTile::tensor, m, k), b = fp8(kE4m3, ScaleTile::tensor, n, k);
  std::fill_n(b.cpu.values.as_bytes(), n * k, encode_fp8(kE4m3, 1.0f));
  a.cpu.values.as_bytes()[3 * k + 5] = 0x7C;   // inf in row 3
  a.cpu.values.as_bytes()[7 * k + 9] = 0x7F;   // NaN in row 7
  b.cpu.values.as_bytes()[11 * k + 2] = 0x7F;  // NaN in column 11
  upload({a.cpu.values, a.gpu.values});
  upload({b.cpu.values, b.gpu.values});
  for (const DType result : {DType::f32, DType::bf16}) {
    const Twin d = zeros(result, {m, n});
    std::memset(d.cpu.data, 0xFF, d.cpu.bytes());  // NaN in both
    upload(d);
    gemm(*gpu_stream, gpu_scratch, {.a = a.gpu, .b = b.gpu, .d = d.gpu});
    const std::vector<double> values = values_of(fetch(d.gpu).view());
    for (std::int64_t i = 0; i < m; ++i) {
      for (std::int64_t j = 0; j < n; ++j) {
        const double value = values[static_cast<std::size_t>(i * n + j)];
        if (i == 7 || j == 11) {
          EXPECT_TRUE(std::isnan(value)) << i << " " << j << ": " << value;
        } else if (i == 3) {
          EXPECT_EQ(value, HUGE_VAL) << j;
        } else {
          EXPECT_TRUE(std::isfinite(value)) << i << " " << j << ": " << value;
        }
      }
    }
  }
}

TEST_F(GpuGemm, RefusesByShapeAndMode) {
  const auto gpu_fp8 = [&](Fp8Format format, ScaleTile tile, std::int64_t rows, std::int64_t k) {
    return fp8(format, tile, rows, k).gpu;
  };
  const Tensor d = zeros(DType::bf16, {48, 64}).gpu;
  expect_refused({.a = gpu_fp8(kE5m2, ScaleTile::tensor, 48, 256), .b = gpu_fp8(kE5m2, ScaleTile::tensor, 64, 256), .d = d},
                 {"no algorithm", "[48, 256] x [64, 256]", "F8_E5M2", "tensor", "precise"});
  expect_refused({.a = gpu_fp8(kE4m3, ScaleTile::block_1x128, 6, 256),
                  .b = gpu_fp8(kE4m3, ScaleTile::block_128x128, 64, 256),
                  .d = d.slice_rows(0, 6)},
                 {"multiples of 4", "[6, 256]", "1x128"});
  const Tensor f32 = zeros(DType::f32, {48, 64}).gpu;
  expect_refused({.a = {.values = f32}, .b = {.values = f32}, .d = zeros(DType::bf16, {48, 48}).gpu}, {"BF16 or FP8", "F32"});
  GemmOperand a = gpu_fp8(kE4m3, ScaleTile::tensor, 48, 256);
  a.scale_inv = zeros(DType::f32, {4}).gpu.slice_rows(1, 2);
  expect_refused({.a = a, .b = gpu_fp8(kE4m3, ScaleTile::tensor, 64, 256), .d = d}, {"multiple of 16 bytes"});
}

TEST_F(GpuGemm, MetaTakesTheSameScratch) {
  const auto meta = make_meta_device(DeviceKind::cuda);
  const auto meta_stream = meta->make_stream();
  for (const Mode& mode : kModes) {
    const Gemm op{.a = fp8(mode.a_format, mode.a_tile, 48, 384).gpu,
                  .b = fp8(mode.b_format, mode.b_tile, 64, 384).gpu,
                  .d = zeros(DType::f32, {48, 64}).gpu};
    Arena meta_scratch(*meta, MemoryCategory::workspace, 0), scratch(*gpu, MemoryCategory::workspace, std::size_t{80} << 20);
    gemm(*meta_stream, meta_scratch, op);
    gemm(*gpu_stream, scratch, op);
    gpu_stream->synchronize();
    EXPECT_EQ(meta_scratch.high_water(), scratch.high_water()) << mode.name;
  }
}

TEST_F(GpuGemm, TuningKeepsTheProductsAndItsChoices) {
  const std::filesystem::path file = std::filesystem::path(::testing::TempDir()) / "octet-gemm-choices.json";
  std::filesystem::remove(file);
  std::vector<std::pair<OperandTwin, OperandTwin>> operands;
  for (const Mode& mode : kModes) {
    operands.emplace_back(fp8(mode.a_format, mode.a_tile, 128, 512), fp8(mode.b_format, mode.b_tile, 256, 512));
  }
  const auto check_all = [&] {
    for (std::size_t i = 0; i < operands.size(); ++i) {
      expect_products(operands[i].first, operands[i].second, kModes[i].accumulator, kModes[i].accumulation, kModes[i].name);
    }
  };
  const Tensor d = zeros(DType::bf16, {128, 256}).gpu;
  const auto multiply_all = [&](Stream& stream, Arena& scratch) {
    for (std::size_t i = 0; i < operands.size(); ++i) {
      gemm(stream, scratch,
           {.a = operands[i].first.gpu, .b = operands[i].second.gpu, .d = d, .accumulation = kModes[i].accumulation});
    }
  };
  int reports = 0, last = -1, total = 0;
  const kernels::GemmTuning tuning{.cache_file = file, .progress = [&](int done, int all) {
                                     ++reports;
                                     last = done;
                                     total = all;
                                   }};
  multiply_all(*gpu_stream, gpu_scratch);
  check_all();
  tune_gemms(*gpu_stream, gpu_scratch, tuning);
  EXPECT_GE(total, 10);
  EXPECT_EQ(last, total);
  EXPECT_EQ(reports, total + 1);
  EXPECT_EQ(gpu_scratch.used(), 0u);
  EXPECT_TRUE(std::filesystem::exists(file));
  check_all();
  const int tuned = total;

  // This device has nothing left to choose, and the next device reads all choices from the file. Without the file it times its
  // few kinds of product.
  reports = 0;
  tune_gemms(*gpu_stream, gpu_scratch, tuning);
  gpu_stream->synchronize();
  const auto other = make_device(DeviceKind::cuda);
  const auto other_stream = other->make_stream();
  Arena small(*other, MemoryCategory::workspace, std::size_t{65} << 20);  // room for a product, none to time it
  multiply_all(*other_stream, small);
  tune_gemms(*other_stream, small, tuning);
  EXPECT_EQ(reports, 0);
  const auto third = make_device(DeviceKind::cuda);
  const auto third_stream = third->make_stream();
  Arena third_scratch(*third, MemoryCategory::workspace, std::size_t{65} << 20);
  multiply_all(*third_stream, third_scratch);
  tune_gemms(*third_stream, third_scratch, {.cache_file = {}, .progress = tuning.progress});
  EXPECT_GT(reports, 0);
  EXPECT_LT(total, tuned);

  // Products whose bits must be those of other ranks are not timed.
  reports = 0;
  gemm(*third_stream, third_scratch,
       {.a = operands.front().first.gpu, .b = operands.front().second.gpu, .d = d, .same_on_ranks = true});
  tune_gemms(*third_stream, third_scratch, {.cache_file = {}, .progress = tuning.progress});
  EXPECT_EQ(reports, 0);
  std::filesystem::remove(file);
}

}  // namespace
}  // namespace octet
