#include "octet/kernels/quantize/quantize.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "octet/base/threads.h"
#include "octet/kernels/quantize/cast_rows.h"
#include "octet/kernels/quantize/decode_table.h"
#include "octet/numerics/scale.h"
#include "support/quantize_cases.h"

namespace octet::kernels {
namespace {

using testing::Fill;
using Bytes = std::vector<std::uint8_t>;

constexpr ScaleTile kAllTiles[] = {ScaleTile::tensor, ScaleTile::row, ScaleTile::block_1x128, ScaleTile::block_128x128,
                                   ScaleTile::mx_1x32};

// A matrix in host memory. Between two rows lies a gap of `stride` - `cols` elements.
struct Matrix {
  std::int64_t rows, cols, stride;
  std::vector<float> values;  // BF16 values, or FP32 to be rounded
  float at(std::int64_t r, std::int64_t c) const { return values[static_cast<std::size_t>(r * stride + c)]; }
};

Matrix make_matrix(std::int64_t rows, std::int64_t cols, Fill fill, std::int64_t gap = 0) {
  Matrix m{rows, cols, cols + gap, {}};
  m.values.resize(static_cast<std::size_t>(rows * m.stride), 1e30f);  // values in the gap must not be read
  for (std::int64_t i = 0; i < rows * cols; ++i) {
    m.values[static_cast<std::size_t>(i / cols * m.stride + i % cols)] =
        static_cast<float>(testing::fill_value(fill, i, rows * cols));
  }
  return m;
}

struct ExpectedCodes {
  std::vector<std::uint8_t> codes;  // [R, C]
  std::vector<float> scale_inv;     // [tiles down, tiles across]; for MX, the E8M0 codes as floats
  float amax = 0;
};

// Applies the definition to one element at a time, for tiles of height x width.
ExpectedCodes reference(const Matrix& m, const QuantSpec& spec, std::int64_t height, std::int64_t width, const float* fixed) {
  ExpectedCodes e;
  e.codes.resize(static_cast<std::size_t>(m.rows * m.cols));
  for (std::int64_t r0 = 0; r0 < m.rows; r0 += height) {
    for (std::int64_t c0 = 0; c0 < m.cols; c0 += width) {
      const std::int64_t r1 = std::min(m.rows, r0 + height), c1 = std::min(m.cols, c0 + width);
      float amax = 0;
      for (std::int64_t r = r0; r < r1; ++r) {
        for (std::int64_t c = c0; c < c1; ++c) amax = max_magnitude(amax, static_cast<float>(BFloat16(m.at(r, c))));
      }
      e.amax = max_magnitude(e.amax, amax);
      float scale;
      if (spec.tile == ScaleTile::mx_1x32) {
        const std::uint8_t code = mx_scale_code(amax);
        scale = e8m0_reciprocal(code);
        e.scale_inv.push_back(code);
      } else {
        scale = fixed ? *fixed : scale_from_amax(amax, spec);
        e.scale_inv.push_back(1.0f / scale);
      }
      for (std::int64_t r = r0; r < r1; ++r) {
        for (std::int64_t c = c0; c < c1; ++c) {
          e.codes[static_cast<std::size_t>(r * m.cols + c)] =
              encode_fp8(spec.format, static_cast<float>(BFloat16(m.at(r, c))) * scale);
        }
      }
    }
  }
  return e;
}

Matrix transposed(const Matrix& m) {
  Matrix t{m.cols, m.rows, m.rows, std::vector<float>(static_cast<std::size_t>(m.rows * m.cols))};
  for (std::int64_t r = 0; r < m.rows; ++r) {
    for (std::int64_t c = 0; c < m.cols; ++c) t.values[static_cast<std::size_t>(c * m.rows + r)] = m.at(r, c);
  }
  return t;
}

std::int64_t tile_height(ScaleTile tile, std::int64_t rows) {
  return tile == ScaleTile::tensor ? rows : tile == ScaleTile::block_128x128 ? 128 : 1;
}
std::int64_t width_of(ScaleTile tile, std::int64_t cols) { return tile_width(tile) > 0 ? tile_width(tile) : cols; }

class QuantizeTest : public ::testing::Test {
 protected:
  QuantizeTest()
      : device_(make_device(DeviceKind::cpu)),
        stream_(device_->make_stream()),
        scratch_(*device_, MemoryCategory::workspace, 1 << 20) {}

  // Returns a tensor filled with 0xAB bytes, so that bytes that the op does not write can be recognised.
  Tensor fresh(DType dtype, Shape shape) {
    memory_.push_back(std::make_unique<Bytes>(std::max<std::size_t>(1, bytes_of(dtype, shape)), std::uint8_t{0xAB}));
    return {memory_.back()->data(), dtype, shape};
  }
  Tensor upload(const Matrix& m, DType dtype) {
    Tensor x = fresh(dtype, {m.rows, m.stride});
    for (std::size_t i = 0; i < m.values.size(); ++i) {
      if (dtype == DType::f32) {
        std::memcpy(x.as_bytes() + 4 * i, &m.values[i], 4);
      } else {
        const BFloat16 rounded(m.values[i]);
        std::memcpy(x.as_bytes() + 2 * i, &rounded, 2);
      }
    }
    return x.slice_cols(0, m.cols);
  }

  enum class Parts { rows, columns, both };
  Quantized make_output(const QuantSpec& spec, std::int64_t rows, std::int64_t cols, Parts parts, std::int64_t padded) {
    Quantized q{.format = spec.format,
                .tile = spec.tile,
                .rowwise = {},
                .rowwise_scale_inv = {},
                .columnwise = {},
                .columnwise_scale_inv = {}};
    if (parts != Parts::columns) {
      q.rowwise = fresh(dtype_of(spec.format), {rows, cols});
      q.rowwise_scale_inv = fresh(scale_dtype(spec.tile), scale_shape(spec.tile, rows, cols));
    }
    if (parts != Parts::rows) {
      q.columnwise = fresh(dtype_of(spec.format), {cols, padded});
      q.columnwise_scale_inv = fresh(scale_dtype(spec.tile), scale_shape(spec.tile, cols, padded));
    }
    return q;
  }

  // Returns the scale of tile (i, k) of the operand's rows, in any layout.
  static float scale_at(const Tensor& scales, ScaleTile tile, std::int64_t i, std::int64_t k) {
    const std::int64_t across = scales.shape.rank() > 1 ? scales.shape[1] : 1;
    const std::int64_t at = tile == ScaleTile::block_1x128 ? k * across + i : i * across + k;
    return tile == ScaleTile::mx_1x32 ? scales.as_bytes()[at] : static_cast<const float*>(scales.data)[at];
  }

  static void expect_version(const Matrix& m, const ExpectedCodes& e, ScaleTile tile, const Tensor& codes, const Tensor& scales,
                             const std::string& what) {
    for (std::int64_t r = 0; r < m.rows; ++r) {
      for (std::int64_t c = 0; c < codes.shape[1]; ++c) {
        const int actual = codes.as_bytes()[r * codes.row_stride + c];
        const int expected = c < m.cols ? e.codes[static_cast<std::size_t>(r * m.cols + c)] : 0;
        ASSERT_EQ(actual, expected) << what << " code [" << r << ", " << c << "]";
      }
    }
    const std::int64_t width = width_of(tile, m.cols), down = ceil_div(m.rows, tile_height(tile, m.rows));
    const std::int64_t across = ceil_div(m.cols, width), stored = ceil_div(codes.shape[1], width_of(tile, codes.shape[1]));
    for (std::int64_t i = 0; i < down; ++i) {
      for (std::int64_t k = 0; k < stored; ++k) {
        const float expected = k < across                   ? e.scale_inv[static_cast<std::size_t>(i * across + k)]
                               : tile == ScaleTile::mx_1x32 ? 127.0f
                                                            : 1.0f;
        const float actual = scale_at(scales, tile, i, k);
        ASSERT_EQ(std::memcmp(&actual, &expected, 4), 0)
            << what << " scale [" << i << ", " << k << "]: " << actual << " for " << expected;
      }
    }
  }

  void check(const Matrix& m, const QuantSpec& spec, DType dtype, Parts parts, std::int64_t padded,
             const float* fixed = nullptr) {
    const std::string what = "tile " + std::to_string(static_cast<int>(spec.tile)) + " of [" + std::to_string(m.rows) + ", " +
                             std::to_string(m.cols) + "] parts " + std::to_string(static_cast<int>(parts));
    const Quantized out = make_output(spec, m.rows, m.cols, parts, padded);
    float amax = 0.25f;
    quantize(*stream_, scratch_,
             {.x = upload(m, dtype), .spec = spec, .out = out, .scale = fixed, .amax = fixed ? &amax : nullptr});
    const ExpectedCodes by_rows = reference(m, spec, tile_height(spec.tile, m.rows), width_of(spec.tile, m.cols), fixed);
    if (parts != Parts::columns) expect_version(m, by_rows, spec.tile, out.rowwise, out.rowwise_scale_inv, what + " rows");
    if (parts != Parts::rows) {
      const Matrix t = transposed(m);
      const ExpectedCodes by_columns = reference(t, spec, tile_height(spec.tile, t.rows), width_of(spec.tile, t.cols), fixed);
      expect_version(t, by_columns, spec.tile, out.columnwise, out.columnwise_scale_inv, what + " columns");
    }
    if (fixed) {
      const float expected = max_magnitude(0.25f, by_rows.amax);
      EXPECT_EQ(std::memcmp(&amax, &expected, 4), 0) << what << " amax " << amax << " for " << expected;
    }
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  Arena scratch_;
  std::vector<std::unique_ptr<Bytes>> memory_;
};

QuantSpec spec_of(ScaleTile tile, Fp8Format format = Fp8Format::e4m3) {
  return {.format = tile == ScaleTile::mx_1x32 ? Fp8Format::e4m3 : format, .tile = tile, .power_of_2 = is_block(tile)};
}

TEST_F(QuantizeTest, FollowsTheContractForEveryTileShapeAndValue) {
  const std::pair<std::int64_t, std::int64_t> shapes[] = {{1, 1}, {17, 33}, {64, 64}, {130, 257}, {31, 300}, {1, 700}, {300, 1}};
  for (const ScaleTile tile : kAllTiles) {
    for (const auto& [rows, cols] : shapes) {
      for (const Fill fill : testing::kFills) {
        const Matrix m = make_matrix(rows, cols, fill, fill == Fill::wide ? 7 : 0);
        for (const Parts parts : {Parts::rows, Parts::columns, Parts::both}) {
          check(m, spec_of(tile), DType::bf16, parts, padded_k(rows, tile));
          if (HasFatalFailure()) return;
        }
        check(m, spec_of(tile, Fp8Format::e5m2), DType::f32, Parts::both, rows);
        if (HasFatalFailure()) return;
        memory_.clear();
      }
    }
  }
}

TEST_F(QuantizeTest, CutsLargeTensorsWithoutASeam) {
  for (const ScaleTile tile : kAllTiles) {
    check(make_matrix(530, 1100, Fill::normal), spec_of(tile), DType::bf16, Parts::both, padded_k(530, tile));
    check(make_matrix(3, 22000, Fill::every_pattern), spec_of(tile), DType::f32, Parts::both, padded_k(3, tile));
    check(make_matrix(3, 70001, Fill::wide, 1), spec_of(tile), DType::bf16, Parts::rows, 0);
    if (HasFatalFailure()) return;
    memory_.clear();
  }
}

TEST_F(QuantizeTest, AppliesEpsilonAndPowerOf2) {
  for (const ScaleTile tile : kAllTiles) {
    QuantSpec spec = spec_of(tile);
    spec.power_of_2 = !spec.power_of_2;
    spec.epsilon = 2.5f;
    check(make_matrix(130, 140, Fill::normal), spec, DType::bf16, Parts::both, padded_k(130, tile));
  }
}

TEST_F(QuantizeTest, CastsWithTheGivenScaleAndRecordsAmax) {
  const QuantSpec spec{.tile = ScaleTile::tensor, .source = ScaleSource::history};
  const float scales[] = {1.0f, 37.5f, std::numeric_limits<float>::max(), 1e-40f, 0.0f, HUGE_VALF, std::nanf("")};
  for (const Fp8Format format : {Fp8Format::e4m3, Fp8Format::e5m2}) {
    for (const float scale : scales) {
      for (const Fill fill : {Fill::normal, Fill::zero, Fill::infinite, Fill::nan}) {
        QuantSpec s = spec;
        s.format = format;
        check(make_matrix(70, 130, fill), s, DType::bf16, Parts::both, 80, &scale);
        check(make_matrix(70, 130, fill, 3), s, DType::f32, Parts::rows, 0, &scale);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// Compares the vector code with the scalar definition for every BF16, many scales, and every alignment of the beginning and the
// end.
TEST_F(QuantizeTest, VectorCastEqualsTheDefinitionForEveryInput) {
  std::vector<BFloat16> all(65536);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = BFloat16::from_bits(static_cast<std::uint16_t>(i));
  std::vector<float> scales = {1.0f,
                               std::numeric_limits<float>::max(),
                               0x1.FEp127f,
                               std::numeric_limits<float>::min(),
                               std::numeric_limits<float>::denorm_min(),
                               0x1p-130f,
                               -2.0f,
                               0.0f,
                               HUGE_VALF,
                               std::nanf("")};
  for (const float amax : {1.0f, 3.0f, 0.017f, 1e-30f, 1e30f, 6.0f}) {
    scales.push_back(448.0f / amax);
    scales.push_back(57344.0f / amax);
  }
  std::vector<std::uint8_t> codes(all.size());
  for (const Fp8Format format : {Fp8Format::e4m3, Fp8Format::e5m2}) {
    for (const float scale : scales) {
      EXPECT_EQ(cpu::cast(format, all.data(), 0, 1, all.size(), scale, codes.data(), 0), 0x7FFF);
      for (std::size_t i = 0; i < all.size(); ++i) {
        ASSERT_EQ(codes[i], encode_fp8(format, static_cast<float>(all[i]) * scale)) << "bits " << i << " scale " << scale;
      }
    }
    for (std::size_t begin = 0x3F00; begin < 0x3F28; ++begin) {
      for (std::size_t n = 0; n < 130; ++n) {
        std::fill(codes.begin(), codes.end(), std::uint8_t{0xAB});
        const cpu::Magnitude amax = cpu::cast(format, all.data() + begin, 0, 1, n, 2.0f, codes.data() + 1, 0);
        ASSERT_EQ(amax, n > 0 ? begin + n - 1 : 0);
        ASSERT_EQ(cpu::amax(all.data() + begin, n), amax);
        ASSERT_EQ(codes[0], 0xAB);
        ASSERT_EQ(codes[n + 1], 0xAB);
      }
    }
  }
}

TEST_F(QuantizeTest, RoundsEveryKindOfF32ToBf16) {
  std::vector<float> values;
  for (std::uint32_t high = 0; high < 0x10000; ++high) {
    for (const std::uint32_t low : {0u, 1u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu})
      values.push_back(std::bit_cast<float>((high << 16) | low));
  }
  std::vector<BFloat16> rounded(values.size());
  cpu::round_to_bf16(values.data(), values.size(), rounded.data());
  for (std::size_t i = 0; i < values.size(); ++i) ASSERT_EQ(rounded[i].bits, BFloat16(values[i]).bits) << values[i];
}

TEST_F(QuantizeTest, DoesNotDependOnThreads) {
  const int before = num_threads();
  const Matrix m = make_matrix(900, 1100, Fill::wide);
  for (const ScaleTile tile : kAllTiles) {
    std::vector<Bytes> results;
    for (const int threads : {1, 4}) {
      set_num_threads(threads);
      memory_.clear();
      const Tensor x = upload(m, DType::bf16);
      const Quantized out = make_output(spec_of(tile), 900, 1100, Parts::both, padded_k(900, tile));
      quantize(*stream_, scratch_, {.x = x, .spec = spec_of(tile), .out = out});
      const Tensor health = fresh(DType::f32, {kHealthValues});
      quantize_health(*stream_, scratch_, {.x = x, .q = out, .out = health.as<float>()});
      for (std::size_t i = 1; i < memory_.size(); ++i) results.push_back(*memory_[i]);
    }
    const std::size_t half = results.size() / 2;
    for (std::size_t i = 0; i < half; ++i)
      EXPECT_EQ(results[i], results[half + i]) << "tile " << static_cast<int>(tile) << " output " << i;
  }
  set_num_threads(before);
}

TEST_F(QuantizeTest, AmaxLetsNanWin) {
  const auto amax_of = [&](Fill fill, DType dtype) {
    float result = -1;
    amax(*stream_, scratch_, {.x = upload(make_matrix(37, 211, fill, 5), dtype), .amax = &result});
    return result;
  };
  for (const DType dtype : {DType::bf16, DType::f32}) {
    EXPECT_TRUE(std::isnan(amax_of(Fill::nan, dtype)));
    EXPECT_EQ(amax_of(Fill::infinite, dtype), HUGE_VALF);
    EXPECT_EQ(amax_of(Fill::zero, dtype), 0.0f);
  }
}

TEST_F(QuantizeTest, TransposesCodesToWhatItWouldHaveMade) {
  for (const ScaleTile tile : {ScaleTile::tensor, ScaleTile::block_128x128}) {
    for (const auto& [rows, cols] :
         std::vector<std::pair<std::int64_t, std::int64_t>>{{1, 1}, {37, 129}, {256, 144}, {130, 64}}) {
      const Tensor x = upload(make_matrix(rows, cols, Fill::wide), DType::bf16);
      const std::int64_t padded = padded_k(rows, tile);
      const Quantized expected = make_output(spec_of(tile), rows, cols, Parts::both, padded);
      Quantized q = make_output(spec_of(tile), rows, cols, Parts::both, padded);
      quantize(*stream_, scratch_, {.x = x, .spec = spec_of(tile), .out = expected});
      Quantized rows_alone = q;
      rows_alone.columnwise = rows_alone.columnwise_scale_inv = {};
      quantize(*stream_, scratch_, {.x = x, .spec = spec_of(tile), .out = rows_alone});
      transpose_codes(*stream_, q);
      for (std::int64_t c = 0; c < cols; ++c) {
        ASSERT_EQ(
            std::memcmp(q.columnwise.as_bytes() + c * q.columnwise.row_stride,
                        expected.columnwise.as_bytes() + c * expected.columnwise.row_stride, static_cast<std::size_t>(padded)),
            0)
            << "column " << c << " of [" << rows << ", " << cols << "]";
      }
      // Compares only scales of tiles that contain rows of x. quantize() also writes 1 for tiles of padding alone, which weights
      // do not have.
      for (std::int64_t i = 0; i < expected.rowwise_scale_inv.elements(); ++i) {
        const std::int64_t across = tile == ScaleTile::tensor ? 1 : expected.rowwise_scale_inv.shape[1];
        EXPECT_EQ(scale_at(q.columnwise_scale_inv, tile, i % across, i / across),
                  scale_at(expected.columnwise_scale_inv, tile, i % across, i / across));
      }
    }
  }
}

TEST_F(QuantizeTest, MetaAsksForTheSameScratchAndCountsTheSameWork) {
  const std::unique_ptr<Device> meta = make_device(DeviceKind::meta);
  const std::unique_ptr<Stream> meta_stream = meta->make_stream();
  Arena meta_scratch(*meta, MemoryCategory::workspace, 0);
  for (const ScaleTile tile : kAllTiles) {
    const Matrix m = make_matrix(130, 257, Fill::normal);
    const Quantized out = make_output(spec_of(tile), 130, 257, Parts::both, 130);
    const Quantize op{.x = upload(m, DType::bf16), .spec = spec_of(tile), .out = out};
    const auto codes = [&] { return Bytes(out.rowwise.as_bytes(), out.rowwise.as_bytes() + out.rowwise.bytes()); };
    const Bytes untouched = codes();
    quantize(*meta_stream, meta_scratch, op);
    EXPECT_TRUE(codes() == untouched);
    quantize(*stream_, scratch_, op);
    float health[kHealthValues];
    quantize_health(*meta_stream, meta_scratch, {.x = op.x, .q = out, .out = health});
    quantize_health(*stream_, scratch_, {.x = op.x, .q = out, .out = health});
  }
  EXPECT_EQ(meta_scratch.high_water(), scratch_.high_water());
  EXPECT_EQ(meta_scratch.used(), 0u);
  EXPECT_EQ(meta_stream->work().bytes, stream_->work().bytes);
  EXPECT_GT(stream_->work().bytes, 0.0);
}

TEST_F(QuantizeTest, RefusesWhatDoesNotFit) {
  const Matrix m = make_matrix(32, 32, Fill::normal);
  const Tensor x = upload(m, DType::bf16);
  const QuantSpec spec = spec_of(ScaleTile::row);
  Quantized wrong = make_output(spec, 32, 16, Parts::rows, 0);
  EXPECT_THROW(quantize(*stream_, scratch_, {.x = x, .spec = spec, .out = wrong}), Error);
  wrong = make_output(spec, 32, 32, Parts::both, 64);  // should be padded to 32
  EXPECT_THROW(quantize(*stream_, scratch_, {.x = x, .spec = spec, .out = wrong}), Error);
  Quantized out = make_output(spec, 32, 32, Parts::rows, 0);
  out.rowwise_scale_inv = {};
  EXPECT_THROW(quantize(*stream_, scratch_, {.x = x, .spec = spec, .out = out}), Error);
  out = make_output(spec, 32, 32, Parts::rows, 0);
  EXPECT_THROW(quantize(*stream_, scratch_, {.x = x, .spec = spec_of(ScaleTile::tensor), .out = out}), Error);
  const float scale = 1;
  EXPECT_THROW(quantize(*stream_, scratch_, {.x = x, .spec = spec, .out = out, .scale = &scale}), Error);
}

TEST_F(QuantizeTest, TakesTensorsWithoutElements) {
  for (const ScaleTile tile : kAllTiles) {
    for (const auto& [rows, cols] : {std::pair<std::int64_t, std::int64_t>{0, 48}, {48, 0}}) {
      const Tensor x = fresh(DType::bf16, {rows, cols});
      const Quantized out = make_output(spec_of(tile), rows, cols, Parts::both, rows);
      quantize(*stream_, scratch_, {.x = x, .spec = spec_of(tile), .out = out});
      if (tile == ScaleTile::tensor) {
        EXPECT_EQ(*out.rowwise_scale_inv.as<float>(), 1.0f);
      }
    }
  }
}

TEST(DecodeTables, HoldEveryCode) {
  for (int code = 0; code < 256; ++code) {
    const auto c = static_cast<std::uint8_t>(code);
    const auto same = [](float a, float b) { return std::memcmp(&a, &b, 4) == 0; };
    EXPECT_TRUE(same(kDecodeE4M3[c], decode_fp8(Fp8Format::e4m3, c))) << code;
    EXPECT_TRUE(same(kDecodeE5M2[c], decode_fp8(Fp8Format::e5m2, c))) << code;
    EXPECT_TRUE(same(kDecodeE8M0[c], decode_e8m0(c))) << code;
  }
}

}  // namespace
}  // namespace octet::kernels
