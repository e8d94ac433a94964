#include "octet/kernels/gemm/gemm.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <deque>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "octet/base/rng.h"
#include "octet/base/threads.h"
#include "octet/kernels/gemm/blas.h"
#include "octet/kernels/gemm/decode.h"
#include "octet/kernels/gemm/gemm_plan.h"
#include "octet/kernels/gemm/gemm_tiles.h"
#include "support/bounds.h"
#include "support/emulated_tiles.h"
#include "support/errors.h"
#include "support/near.h"

namespace octet {
namespace {

using kernels::Gemm;
using kernels::GemmOperand;
using testing::near;
using testing::same_bytes;
using testing::values_of;
using Layout = GemmOperand::Layout;

// The products run with BLAS alone, and with the emulated tiles wherever a processor with tiles would use them.
class GemmTest : public ::testing::TestWithParam<const kernels::cpu::TileKernel*> {
 protected:
  void TearDown() override { set_num_threads(available_cores()); }

  Tensor zeros(DType dtype, Shape shape) {
    buffers_.push_back(device_->allocate(std::max<std::size_t>(1, bytes_of(dtype, shape)), MemoryCategory::workspace));
    return view(buffers_.back(), dtype, shape);
  }

  // Makes values in (-1, 1). FP8 tensors get every finite code.
  Tensor random(DType dtype, Shape shape, std::uint32_t subject) {
    Tensor x = zeros(dtype, shape);
    const Rng rng(1, RngStream::test, subject);
    for (std::int64_t i = 0; i < x.elements(); ++i) {
      const std::uint64_t word = rng.word64(static_cast<std::uint64_t>(i));
      const double value = static_cast<double>(word >> 11) * 0x1p-52 - 1;
      switch (dtype) {
        case DType::f64:
          x.as<double>()[i] = value;
          break;
        case DType::f32:
          x.as<float>()[i] = static_cast<float>(value);
          break;
        case DType::bf16:
          x.as<BFloat16>()[i] = BFloat16(static_cast<float>(value));
          break;
        case DType::f8_e4m3:
          x.as_bytes()[i] = static_cast<std::uint8_t>((word % 0x7F) | ((word >> 32) & 0x80));
          break;
        case DType::f8_e5m2:
          x.as_bytes()[i] = static_cast<std::uint8_t>((word % 0x7C) | ((word >> 32) & 0x80));
          break;
        case DType::e8m0:
          x.as_bytes()[i] = static_cast<std::uint8_t>(119 + word % 17);
          break;
        default:
          ADD_FAILURE() << name_of(dtype);
      }
    }
    return x;
  }

  GemmOperand operand(DType dtype, std::int64_t rows, std::int64_t k, Layout layout, std::uint32_t subject) {
    return {.values = random(dtype, layout == Layout::k_last ? Shape{rows, k} : Shape{k, rows}, subject), .layout = layout};
  }

  GemmOperand fp8_operand(Fp8Format format, ScaleTile tile, std::int64_t rows, std::int64_t k, std::uint32_t subject,
                          Layout layout = Layout::k_last) {
    GemmOperand x = operand(dtype_of(format), rows, k, layout, subject);
    x.tile = tile;
    x.scale_inv = random(scale_dtype(tile), scale_shape(tile, rows, k), subject + 100);
    if (tile != ScaleTile::mx_1x32) {
      float* scales = x.scale_inv.as<float>();
      for (std::int64_t i = 0; i < x.scale_inv.elements(); ++i)
        scales[i] = std::ldexp(std::abs(scales[i]) + 0.5f, static_cast<int>(i % 5) - 8);
    }
    return x;
  }

  Stream& stream() { return *stream_; }
  Arena& scratch() { return scratch_; }

 private:
  testing::UseTileKernel kernel_{GetParam()};
  std::unique_ptr<Device> device_ = make_device(DeviceKind::cpu);
  std::unique_ptr<Stream> stream_ = device_->make_stream();
  Arena scratch_{*device_, MemoryCategory::workspace, std::size_t{256} << 20};
  std::deque<Buffer> buffers_;
};
INSTANTIATE_TEST_SUITE_P(, GemmTest, ::testing::Values(nullptr, &testing::kEmulatedTiles, &testing::kEmulatedPairs),
                         [](const auto& info) { return testing::name_of(info.param); });

// Returns the scale of element [row, k] by the layouts of tensor/quantized.h.
double scale_at(const GemmOperand& x, const std::vector<double>& scales, std::int64_t row, std::int64_t k) {
  const std::int64_t rows = x.values.shape[0], blocks = (x.values.shape[1] + 127) / 128;
  const auto at = [&](std::int64_t i) { return scales[static_cast<std::size_t>(i)]; };
  switch (x.tile) {
    case ScaleTile::tensor:
      return at(0);
    case ScaleTile::row:
      return at(row);
    case ScaleTile::block_1x128:
      return at(k / 128 * rows + row);
    case ScaleTile::block_128x128:
      return at(row / 128 * blocks + k / 128);
    case ScaleTile::mx_1x32:
      return std::exp2(at(row * ((x.values.shape[1] + 31) / 32) + k / 32) - 127);
  }
  return NAN;
}

// Returns an operand as [rows, K] in F64.
std::vector<double> decoded(const GemmOperand& x, std::int64_t rows, std::int64_t k) {
  const std::vector<double> values = values_of(x.values);
  const std::vector<double> scales = x.scale_inv ? values_of(x.scale_inv) : std::vector<double>();
  const bool fp8 = x.values.dtype == DType::f8_e4m3 || x.values.dtype == DType::f8_e5m2;
  // A scale covers at least 32 elements along K, so one look-up for each 32 is enough.
  std::vector<double> result(static_cast<std::size_t>(rows * k));
  for (std::int64_t r = 0; r < rows; ++r) {
    double scale = 1;
    for (std::int64_t c = 0; c < k; ++c) {
      if (fp8 && c % 32 == 0) scale = scale_at(x, scales, r, c);
      const std::int64_t i = x.layout == Layout::k_last ? r * k + c : c * rows + r;
      result[static_cast<std::size_t>(r * k + c)] = values[static_cast<std::size_t>(i)] * scale;
    }
  }
  return result;
}

struct Reference {
  std::vector<double> d;
  std::vector<double> magnitude;  // sum of |terms|, including C
};

Reference reference(const Gemm& op) {
  const std::int64_t m = op.d.shape[0], n = op.d.shape[1];
  const std::int64_t k = op.a.values.shape[op.a.layout == Layout::k_last ? 1 : 0];
  const std::vector<double> a = decoded(op.a, m, k), b = decoded(op.b, n, k);
  Reference result;
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      const double *row = a.data() + i * k, *column = b.data() + j * k;
      double sum = 0, magnitude = 0;
      for (std::int64_t p = 0; p < k; ++p) {
        sum += row[p] * column[p];
        magnitude += std::abs(row[p] * column[p]);
      }
      result.d.push_back(sum);
      result.magnitude.push_back(magnitude);
    }
  }
  return result;
}
Reference plus(Reference result, const Tensor& c) {
  const std::vector<double> addends = c ? values_of(c) : std::vector<double>(result.d.size());
  for (std::size_t i = 0; i < addends.size(); ++i) {
    result.d[i] += addends[i];
    result.magnitude[i] += std::abs(addends[i]);
  }
  return result;
}

// Bounds the error by ((K + 4) u / (1 - (K + 4) u)) * sum |terms| plus half a unit in the last place of D. This holds for a sum
// in any order (Higham, 2002, 3.1). Each operand may be rounded once when its scale is applied, and each sum may be multiplied by
// two scales and added to C. Tiles also lose what is below 2^-126.
::testing::AssertionResult agrees(const Gemm& op, const Reference& expected, std::int64_t k) {
  const double u = op.d.dtype == DType::f64 ? 0x1p-53 : 0x1p-24;
  const double roundings = static_cast<double>(k + 4) * u, gamma = roundings / (1 - roundings);
  const double store = op.d.dtype == DType::bf16 ? 0x1p-8 : 0;
  return near(
      values_of(op.d), expected.d,
      [&](std::size_t i) {
        const double sum = gamma * expected.magnitude[i];
        return sum + store * (std::abs(expected.d[i]) + sum) + tile_dot_error_bound(k, 0);
      },
      op.d.shape[1]);
}

TEST(GemmDecode, EqualsTheScalarDecoderForAllCodes) {
  for (int i = 0; i < 256; ++i) {
    const auto code = static_cast<std::uint8_t>(i);
    EXPECT_EQ(std::bit_cast<std::uint32_t>(kernels::decode_code<Fp8Format::e4m3>(code)),
              std::bit_cast<std::uint32_t>(decode_fp8(Fp8Format::e4m3, code)))
        << i;
    EXPECT_EQ(std::bit_cast<std::uint32_t>(kernels::decode_code<Fp8Format::e5m2>(code)),
              std::bit_cast<std::uint32_t>(decode_fp8(Fp8Format::e5m2, code)))
        << i;
  }
}

TEST_P(GemmTest, OpenBlasRunsOneThreadPerCallAndNoOutdatedKernel) {
  EXPECT_STRNE(kernels::gemm_core_name(), "Prescott");
  // Slower than any vector kernel, even with sanitizers and on a busy machine.
  const double seconds = kernels::cpu::blas_seconds(128, 128, 128, 1);
  EXPECT_GT(2.0 * 128 * 128 * 128 / seconds, 1e8);
}

TEST_P(GemmTest, EveryDtypeLayoutAndAddend) {
  struct Types {
    DType operand, result;
  };
  const std::int64_t m = 37, n = 50, k = 471;  // K spans two chunks
  for (const Types types : {Types{DType::f64, DType::f64}, Types{DType::f32, DType::f32}, Types{DType::f32, DType::bf16},
                            Types{DType::bf16, DType::bf16}, Types{DType::bf16, DType::f32}}) {
    for (const Layout la : {Layout::k_last, Layout::k_first}) {
      for (const Layout lb : {Layout::k_last, Layout::k_first}) {
        enum class Addend { none, other, itself };
        Gemm op{
            .a = operand(types.operand, m, k, la, 1), .b = operand(types.operand, n, k, lb, 2), .d = zeros(types.result, {m, n})};
        const Reference product = reference(op);
        for (const Addend addend : {Addend::none, Addend::other, Addend::itself}) {
          op.d = random(types.result, {m, n}, 3);
          op.c = addend == Addend::other ? random(types.result, {m, n}, 4) : addend == Addend::itself ? op.d : Tensor();
          const Reference expected = plus(product, op.c);
          gemm(stream(), scratch(), op);
          EXPECT_TRUE(agrees(op, expected, k))
              << name_of(types.operand) << " " << name_of(types.result) << " layouts " << static_cast<int>(la)
              << static_cast<int>(lb) << " addend " << static_cast<int>(addend);
        }
      }
    }
  }
}

// The factor multiplies the sum, and not C.
TEST_P(GemmTest, FactorScalesTheProductAlone) {
  const std::int64_t m = 37, n = 50, k = 471;
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    const GemmOperand a = operand(dtype, m, k, Layout::k_last, 1), b = operand(dtype, n, k, Layout::k_first, 2);
    const Tensor c = random(dtype, {m, n}, 3), d = zeros(dtype, {m, n});
    Gemm op{.a = a, .b = b, .c = c, .d = d, .factor = 0.375f};
    Reference expected = reference(op);
    for (std::vector<double>* numbers : {&expected.d, &expected.magnitude}) {
      for (double& number : *numbers) number *= 0.375;
    }
    gemm(stream(), scratch(), op);
    EXPECT_TRUE(agrees(op, plus(expected, c), k)) << name_of(dtype);
  }
}

TEST_P(GemmTest, EveryScaleTile) {
  struct Tiles {
    ScaleTile a, b;
  };
  for (const Tiles tiles :
       {Tiles{ScaleTile::tensor, ScaleTile::tensor}, Tiles{ScaleTile::row, ScaleTile::row},
        Tiles{ScaleTile::block_1x128, ScaleTile::block_128x128}, Tiles{ScaleTile::block_128x128, ScaleTile::block_1x128},
        Tiles{ScaleTile::block_1x128, ScaleTile::block_1x128}, Tiles{ScaleTile::mx_1x32, ScaleTile::mx_1x32}}) {
    for (const Fp8Format format : {Fp8Format::e4m3, Fp8Format::e5m2}) {
      const std::int64_t m = 140, n = 133, k = 560;  // two chunks of K; every last tile is not full
      Gemm op{.a = fp8_operand(format, tiles.a, m, k, 5),
              .b = fp8_operand(Fp8Format::e4m3, tiles.b, n, k, 6),
              .d = zeros(DType::f32, {m, n})};
      const Reference product = reference(op);
      for (const DType result : {DType::bf16, DType::f32}) {
        for (const bool add : {false, true}) {
          op.d = random(result, {m, n}, 7);
          op.c = add ? op.d : Tensor();
          const Reference expected = plus(product, op.c);
          gemm(stream(), scratch(), op);
          EXPECT_TRUE(agrees(op, expected, k))
              << "tiles " << static_cast<int>(tiles.a) << " " << static_cast<int>(tiles.b) << " " << name_of(result);
        }
      }
    }
  }
}

// Codes with one scale may have K first, in either operand and both formats.
TEST_P(GemmTest, CodesWithKFirst) {
  const std::int64_t m = 140, n = 133, k = 560;  // two chunks of K; every last tile is not full
  for (const Fp8Format format : {Fp8Format::e4m3, Fp8Format::e5m2}) {
    for (const Layout la : {Layout::k_last, Layout::k_first}) {
      for (const Layout lb : {Layout::k_last, Layout::k_first}) {
        Gemm op{.a = fp8_operand(format, ScaleTile::tensor, m, k, 5, la),
                .b = fp8_operand(Fp8Format::e4m3, ScaleTile::tensor, n, k, 6, lb),
                .d = zeros(DType::f32, {m, n})};
        gemm(stream(), scratch(), op);
        EXPECT_TRUE(agrees(op, reference(op), k)) << "layouts " << static_cast<int>(la) << static_cast<int>(lb);
      }
    }
  }
}

// With K = 1 there is no order of summation to choose. The result is (code * code) * a's scale * b's scale, in this order, plus
// C, bit for bit.
TEST_P(GemmTest, OrderOfScalesIsExact) {
  const std::int64_t m = 40, n = 50;
  for (const ScaleTile tile : {ScaleTile::tensor, ScaleTile::row}) {
    for (const bool add : {false, true}) {
      Gemm op{.a = fp8_operand(Fp8Format::e5m2, tile, m, 1, 8),
              .b = fp8_operand(Fp8Format::e4m3, tile, n, 1, 9),
              .d = random(DType::f32, {m, n}, 10)};
      if (add) op.c = random(DType::f32, {m, n}, 11);
      gemm(stream(), scratch(), op);
      for (std::int64_t i = 0; i < m; ++i) {
        for (std::int64_t j = 0; j < n; ++j) {
          const float sum =
              decode_fp8(Fp8Format::e5m2, op.a.values.as_bytes()[i]) * decode_fp8(Fp8Format::e4m3, op.b.values.as_bytes()[j]);
          float expected = (sum * op.a.scale_inv.as<float>()[tile == ScaleTile::row ? i : 0]) *
                           op.b.scale_inv.as<float>()[tile == ScaleTile::row ? j : 0];
          if (add) expected += op.c.as<float>()[i * n + j];
          ASSERT_EQ(op.d.as<float>()[i * n + j], expected) << i << " " << j;
        }
      }
    }
  }
}

TEST_P(GemmTest, SameBitsForAnyNumberOfThreads) {
  struct Case {
    std::int64_t m, n, k;
    DType operand, result;
    Layout layout;
  };
  for (const Case& c :
       {Case{300, 352, 128, DType::f8_e4m3, DType::bf16, Layout::k_last},
        Case{352, 128, 500, DType::bf16, DType::f32, Layout::k_first}, Case{520, 300, 64, DType::f32, DType::f32, Layout::k_last},
        Case{130, 260, 90, DType::f64, DType::f64, Layout::k_first},
        Case{3, 1000, 400, DType::bf16, DType::bf16, Layout::k_last}}) {
    Tensor first;
    for (const int threads : {1, 2, 3, 5}) {
      set_num_threads(threads);
      const bool fp8 = c.operand == DType::f8_e4m3;
      Gemm op{.a = fp8 ? fp8_operand(Fp8Format::e4m3, ScaleTile::row, c.m, c.k, 12) : operand(c.operand, c.m, c.k, c.layout, 12),
              .b = fp8 ? fp8_operand(Fp8Format::e4m3, ScaleTile::row, c.n, c.k, 13) : operand(c.operand, c.n, c.k, c.layout, 13),
              .d = random(c.result, {c.m, c.n}, 14)};
      op.c = op.d;
      gemm(stream(), scratch(), op);
      if (threads == 1) {
        first = op.d;
      } else {
        EXPECT_TRUE(same_bytes(op.d, first)) << threads << " threads, " << op.d.shape;
      }
    }
  }
}

// Tiles multiply what BF16 holds exactly, and BLAS the rest: codes whose scales within K are not powers of two.
TEST_P(GemmTest, TilesTakeOnlyExactOperands) {
  const auto exact = [&](ScaleTile a, ScaleTile b, float scale) {
    Gemm op{.a = fp8_operand(Fp8Format::e4m3, a, 140, 300, 41), .b = fp8_operand(Fp8Format::e4m3, b, 133, 300, 42), .d = {}};
    for (GemmOperand* x : {&op.a, &op.b}) {
      if (is_block(x->tile)) std::fill_n(x->scale_inv.as<float>(), x->scale_inv.elements(), 0.25f);
    }
    if (is_block(a)) op.a.scale_inv.as<float>()[op.a.scale_inv.elements() - 1] = scale;
    return kernels::cpu::exact_in_tiles(op);
  };
  EXPECT_TRUE(exact(ScaleTile::tensor, ScaleTile::tensor, 1));
  EXPECT_TRUE(exact(ScaleTile::row, ScaleTile::row, 1));
  EXPECT_TRUE(exact(ScaleTile::mx_1x32, ScaleTile::mx_1x32, 1));
  EXPECT_TRUE(exact(ScaleTile::block_1x128, ScaleTile::block_128x128, 0x1p-126f));
  EXPECT_FALSE(exact(ScaleTile::block_1x128, ScaleTile::block_128x128, 0x1p-127f));
  EXPECT_FALSE(exact(ScaleTile::block_128x128, ScaleTile::block_1x128, 0.75f));
  EXPECT_FALSE(exact(ScaleTile::block_1x128, ScaleTile::block_1x128, 0.0f));
}

TEST_P(GemmTest, BlocksWithPowersOfTwo) {
  for (const ScaleTile tile : {ScaleTile::block_1x128, ScaleTile::block_128x128}) {
    const std::int64_t m = 140, n = 133, k = 560;
    Gemm op{.a = fp8_operand(Fp8Format::e4m3, tile, m, k, 43),
            .b = fp8_operand(Fp8Format::e5m2, ScaleTile::block_1x128, n, k, 44),
            .d = zeros(DType::f32, {m, n})};
    for (GemmOperand* x : {&op.a, &op.b}) {
      float* const scales = x->scale_inv.as<float>();
      for (std::int64_t i = 0; i < x->scale_inv.elements(); ++i) scales[i] = std::ldexp(1.0f, static_cast<int>(i * 5 % 19) - 9);
    }
    gemm(stream(), scratch(), op);
    EXPECT_TRUE(agrees(op, reference(op), k)) << static_cast<int>(tile);
  }
}

TEST_P(GemmTest, StridedRows) {
  const std::int64_t m = 20, n = 30, k = 24;
  const Tensor wide_a = random(DType::bf16, {m, 3 * k}, 15), wide_b = random(DType::bf16, {k, 2 * n}, 16),
               wide_d = random(DType::f32, {m, 2 * n}, 17);
  const std::vector<double> before = values_of(wide_d);
  const Gemm op{.a = {.values = wide_a.slice_cols(k, 2 * k)},
                .b = {.values = wide_b.slice_cols(n, 2 * n), .layout = Layout::k_first},
                .d = wide_d.slice_cols(0, n)};
  gemm(stream(), scratch(), op);
  EXPECT_TRUE(agrees(op, reference(op), k));
  EXPECT_EQ(values_of(wide_d.slice_cols(n, 2 * n))[5], before[static_cast<std::size_t>(n + 5)]);
}

TEST_P(GemmTest, ScratchDoesNotGrowWithK) {
  const auto meta = make_device(DeviceKind::meta);
  const auto meta_stream = meta->make_stream();
  const Buffer nowhere = meta->allocate(1, MemoryCategory::workspace);
  const auto bytes = [&](std::int64_t k) {
    Arena arena(*meta, MemoryCategory::workspace, 0);
    const auto on_meta = [&](DType dtype, Shape shape) { return Tensor(nowhere.data(), dtype, shape); };
    kernels::gemm(*meta_stream, arena,
                  {.a = {.values = on_meta(DType::bf16, {4096, k})},
                   .b = {.values = on_meta(DType::bf16, {4096, k})},
                   .d = on_meta(DType::f32, {4096, 4096})});
    return arena.high_water();
  };
  EXPECT_EQ(bytes(4096), bytes(1 << 20));
  EXPECT_LE(bytes(1 << 20), static_cast<std::size_t>(num_threads()) * (std::size_t{4} << 20));
}

TEST_P(GemmTest, EmptyDims) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64}) {
    const DType result = dtype;
    const Tensor c = random(result, {3, 4}, 20);
    Gemm op{.a = operand(dtype, 3, 0, Layout::k_last, 21),
            .b = operand(dtype, 4, 0, Layout::k_last, 22),
            .c = c,
            .d = random(result, {3, 4}, 23)};
    gemm(stream(), scratch(), op);
    EXPECT_TRUE(same_bytes(op.d, c));
    op.c = {};
    gemm(stream(), scratch(), op);
    EXPECT_EQ(values_of(op.d), std::vector<double>(12, 0.0));
    const Gemm no_rows{
        .a = operand(dtype, 0, 8, Layout::k_last, 21), .b = operand(dtype, 4, 8, Layout::k_last, 22), .d = zeros(result, {0, 4})};
    gemm(stream(), scratch(), no_rows);
    const Gemm no_columns{
        .a = operand(dtype, 3, 8, Layout::k_last, 21), .b = operand(dtype, 0, 8, Layout::k_last, 22), .d = zeros(result, {3, 0})};
    gemm(stream(), scratch(), no_columns);
  }
}

TEST_P(GemmTest, NanAndInfinityPassThroughAndGarbageInDDoesNot) {
  for (const DType result : {DType::f32, DType::bf16}) {
    const std::int64_t m = 33, n = 34, k = 160;
    Gemm op{.a = fp8_operand(Fp8Format::e5m2, ScaleTile::tensor, m, k, 24),
            .b = fp8_operand(Fp8Format::e4m3, ScaleTile::tensor, n, k, 25),
            .d = zeros(result, {m, n})};
    std::memset(op.d.data, 0xFF, op.d.bytes());                // NaN in F32 and BF16
    std::memset(op.b.values.data, 0x38, op.b.values.bytes());  // all codes are 1
    op.a.values.as_bytes()[3 * k + 5] = 0x7C;                  // inf in row 3
    op.a.values.as_bytes()[7 * k + 9] = 0x7F;                  // NaN in row 7
    op.b.values.as_bytes()[11 * k + 2] = 0x7F;                 // NaN in column 11
    gemm(stream(), scratch(), op);
    const std::vector<double> d = values_of(op.d);
    for (std::int64_t i = 0; i < m; ++i) {
      for (std::int64_t j = 0; j < n; ++j) {
        const double value = d[static_cast<std::size_t>(i * n + j)];
        if (i == 7 || j == 11) {
          EXPECT_TRUE(std::isnan(value)) << i << " " << j;
        } else if (i == 3) {
          EXPECT_EQ(value, std::numeric_limits<double>::infinity()) << j;
        } else {
          EXPECT_TRUE(std::isfinite(value)) << i << " " << j << ": " << value;
        }
      }
    }
  }
}

TEST_P(GemmTest, MetaTakesTheSameScratchAndCountsTheSameWork) {
  const auto meta = make_device(DeviceKind::meta);
  const auto meta_stream = meta->make_stream();
  for (const DType result : {DType::f32, DType::bf16}) {
    for (const bool add : {false, true}) {
      const std::int64_t m = 300, n = 200, k = 2048;  // K is long enough to use every lane
      Gemm op{.a = fp8_operand(Fp8Format::e4m3, ScaleTile::row, m, k, 26),
              .b = fp8_operand(Fp8Format::e4m3, ScaleTile::row, n, k, 27),
              .d = zeros(result, {m, n})};
      if (add) op.c = op.d;
      const auto device = make_device(DeviceKind::cpu);
      Arena cpu_scratch(*device, MemoryCategory::workspace, std::size_t{64} << 20),
          meta_scratch(*meta, MemoryCategory::workspace, 0);
      Arena marked(*device, MemoryCategory::workspace, std::size_t{16} << 20);
      auto* memory = static_cast<std::uint8_t*>(marked.allocate(marked.capacity()));
      std::memset(memory, 0xAB, marked.capacity());
      marked.release_to(0);
      gemm(stream(), marked, op);
      stream().reset_work();
      gemm(stream(), cpu_scratch, op);
      // Checks that nothing was written beyond the scratch memory that the GEMM asked for.
      EXPECT_TRUE(std::all_of(memory + cpu_scratch.high_water(), memory + marked.capacity(),
                              [](std::uint8_t byte) { return byte == 0xAB; }));
      const Buffer nowhere = meta->allocate(std::size_t{1} << 20, MemoryCategory::workspace);
      for (Tensor* x : {&op.a.values, &op.a.scale_inv, &op.b.values, &op.b.scale_inv, &op.d}) x->data = nowhere.data();
      if (add) op.c = op.d;
      meta_stream->reset_work();
      gemm(*meta_stream, meta_scratch, op);
      EXPECT_EQ(meta_scratch.high_water(), cpu_scratch.high_water());
      EXPECT_EQ(cpu_scratch.used(), 0u);
      EXPECT_EQ(meta_stream->work().flops, 2.0 * static_cast<double>(m * n * k));
      EXPECT_EQ(meta_stream->work().fp8_flops, meta_stream->work().flops);
      EXPECT_EQ(meta_stream->work().bytes, stream().work().bytes);
    }
  }
}

// A build without CUDA plans cuBLASLt's workspace and the copies that it cannot do without. A GPU that emulates MX decodes both
// operands to BF16. cuBLASLt wants rows of four 128x128 scales, and K = 320 has three.
TEST_P(GemmTest, PlansTheScratchOfGpus) {
  const auto meta = make_meta_device(DeviceKind::cuda);
  const auto meta_stream = meta->make_stream();
  const auto beside_workspace = [&](const Gemm& op) {
    Arena planned(*meta, MemoryCategory::workspace, 0);
    gemm(*meta_stream, planned, op);
    return planned.high_water() - (std::size_t{64} << 20);
  };
  const Tensor d = zeros(DType::bf16, {48, 256});
  const auto fp8 = [&](ScaleTile tile, std::int64_t rows, std::int64_t k) {
    return fp8_operand(Fp8Format::e4m3, tile, rows, k, 31);
  };
  EXPECT_EQ(beside_workspace({.a = fp8(ScaleTile::tensor, 48, 320), .b = fp8(ScaleTile::tensor, 256, 320), .d = d}), 0u);
  EXPECT_EQ(beside_workspace({.a = fp8(ScaleTile::mx_1x32, 48, 320), .b = fp8(ScaleTile::mx_1x32, 256, 320), .d = d}),
            (48u + 256u) * 320u * 2u);
  EXPECT_EQ(beside_workspace({.a = fp8(ScaleTile::block_1x128, 48, 320), .b = fp8(ScaleTile::block_128x128, 256, 320), .d = d}),
            256u);  // two rows of four F32, rounded up to the alignment of 256 bytes
}

TEST_P(GemmTest, RefusesWhatNoDeviceMultiplies) {
  const Tensor d = zeros(DType::f32, {128, 128});
  const auto fp8 = [&](ScaleTile tile) { return fp8_operand(Fp8Format::e4m3, tile, 128, 128, 28); };
  const auto refuses = [&](const Gemm& op, const std::string& words) {
    EXPECT_TRUE(testing::contains(testing::error_of(ExitCode::internal, [&] { gemm(stream(), scratch(), op); }), words));
  };
  refuses({.a = fp8(ScaleTile::block_128x128), .b = fp8(ScaleTile::block_128x128), .d = d}, "128x128 and 128x128");
  refuses({.a = fp8(ScaleTile::tensor), .b = fp8(ScaleTile::row), .d = d}, "tensor and row");
  refuses({.a = fp8(ScaleTile::mx_1x32), .b = fp8(ScaleTile::block_1x128), .d = d}, "MX and 1x128");
  refuses({.a = fp8(ScaleTile::tensor), .b = operand(DType::bf16, 128, 128, Layout::k_last, 29), .d = d}, "F8_E4M3 and BF16");
  refuses({.a = operand(DType::f32, 128, 128, Layout::k_last, 29), .b = operand(DType::f32, 128, 64, Layout::k_last, 29), .d = d},
          "differ in K");
  refuses({.a = operand(DType::f32, 64, 128, Layout::k_last, 29), .b = operand(DType::f32, 128, 128, Layout::k_last, 29), .d = d},
          "[64, 128]");
  GemmOperand first = fp8(ScaleTile::row);
  first.layout = Layout::k_first;
  refuses({.a = first, .b = fp8(ScaleTile::row), .d = d}, "K last");
}

TEST(GemmMeta, RefusesCodesWithKFirstForAGpu) {
  const auto device = make_meta_device(DeviceKind::cuda);
  const auto stream = device->make_stream();
  Arena scratch(*device, MemoryCategory::workspace, 0);
  const GemmOperand a{.values = {nullptr, DType::f8_e4m3, {128, 128}}, .scale_inv = {nullptr, DType::f32, {1}}};
  GemmOperand b = a;
  b.layout = Layout::k_first;
  const Gemm op{.a = a, .b = b, .d = {nullptr, DType::f32, {128, 128}}};
  EXPECT_TRUE(testing::contains(testing::error_of(ExitCode::internal, [&] { gemm(*stream, scratch, op); }), "K last on cuda"));
}

}  // namespace
}  // namespace octet
