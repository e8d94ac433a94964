#include "octet/kernels/quantize/shard.h"

#include <cmath>
#include <vector>

#include "kernels/op_fixture.h"
#include "octet/base/math.h"
#include "octet/kernels/quantize/quantize.h"
#include "octet/numerics/scale.h"
#include "support/quantize_cases.h"

namespace octet::kernels {
namespace {

using testing::Fill;
using testing::same_bytes;

constexpr ScaleTile kTiles[] = {ScaleTile::tensor, ScaleTile::row, ScaleTile::block_128x128, ScaleTile::mx_1x32};

struct ShardTest : testing::OpTest {
  Tensor source(DType dtype, const Shape& shape, Fill fill) {
    return filled(dtype, shape, [&](std::int64_t i) { return testing::fill_value(fill, i, shape.elements()); });
  }

  Quantized output(const QuantSpec& spec, const Shape& whole, std::int64_t width) {
    return {.format = spec.format,
            .tile = spec.tile,
            .rowwise = zeros(dtype_of(spec.format), whole),
            .rowwise_scale_inv = zeros(scale_dtype(spec.tile), scale_shape(spec.tile, whole[0], whole[1])),
            .columnwise = zeros(dtype_of(spec.format), {whole[1], width}),
            .columnwise_scale_inv = zeros(scale_dtype(spec.tile), scale_shape(spec.tile, whole[1], width))};
  }

  // Returns each rank's shard of x. All shards have the same size, except that the last ones may be shorter or empty.
  static std::vector<Shard> cut(const Tensor& x, std::int64_t ranks) {
    const std::int64_t all = x.elements(), size = round_up(ceil_div(all, ranks), 128);
    std::vector<Shard> shards;
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      const std::int64_t first = std::min(all, rank * size), end = std::min(all, first + size);
      shards.push_back({.x = x.reshape({all}).slice_rows(first, end), .first = first, .whole = x.shape});
    }
    return shards;
  }

  Tensor reduced_amax(const std::vector<Shard>& shards, ScaleTile tile, Along along) {
    const Shape shape = amax_shape(tile, along, shards[0].whole);
    const Tensor total = zeros(DType::f32, shape);
    for (const Shard& shard : shards) {
      const Tensor mine = zeros(DType::f32, shape);
      shard_amax(*stream, {.shard = shard,
                           .tile = tile,
                           .rows = along == Along::rows ? mine : Tensor(),
                           .columns = along == Along::columns ? mine : Tensor()});
      for (std::int64_t i = 0; i < shape.elements(); ++i) {
        total.as<float>()[i] = max_magnitude(total.as<float>()[i], mine.as<float>()[i]);
      }
    }
    return total;
  }

  // Quantises x in shards, as all ranks do together.
  Quantized in_shards(const Tensor& x, const QuantSpec& spec, std::int64_t ranks, std::int64_t width, const float* scale,
                      float* amax) {
    const Quantized out = output(spec, x.shape, width);
    const std::vector<Shard> shards = cut(x, ranks);
    const bool square = is_square(spec.tile);
    const Tensor column_codes = square ? Tensor() : zeros(out.rowwise.dtype, x.shape);
    Tensor multipliers, column_multipliers;
    if (!scale) {
      multipliers = reduced_amax(shards, spec.tile, Along::rows);
      scales_from_amax(
          *stream,
          {.amax = multipliers, .spec = spec, .whole = x.shape, .multipliers = multipliers, .scale_inv = out.rowwise_scale_inv});
    }
    if (!square) {
      const Tensor amaxes = reduced_amax(shards, spec.tile, Along::columns);
      column_multipliers = zeros(DType::f32, amaxes.shape);
      scales_from_amax(*stream, {.amax = amaxes,
                                 .spec = spec,
                                 .along = Along::columns,
                                 .whole = x.shape,
                                 .multipliers = column_multipliers,
                                 .scale_inv = out.columnwise_scale_inv});
    }
    for (const Shard& shard : shards) {
      const std::int64_t first = shard.first, end = first + shard.x.elements();
      const auto part = [&](const Tensor& codes) {
        return codes ? codes.reshape({x.elements()}).slice_rows(first, end) : Tensor();
      };
      cast_shard(*stream, {.shard = shard,
                           .spec = spec,
                           .codes = part(out.rowwise),
                           .multipliers = multipliers,
                           .column_codes = part(column_codes),
                           .column_multipliers = column_multipliers,
                           .scale = scale,
                           .scale_inv = scale ? out.rowwise_scale_inv : Tensor(),
                           .amax = amax});
    }
    Quantized gathered = out;
    if (!square) gathered.rowwise = column_codes;
    transpose_codes(*stream, gathered);
    return out;
  }

  void check(const Tensor& x, const QuantSpec& spec, std::int64_t ranks, const std::string& what) {
    const bool history = spec.source == ScaleSource::history;
    const float scale = 37.5f;
    float expected_amax = 0.25f, amax = 0.25f;
    const std::int64_t width = ranks % 2 ? padded_k(x.rows(), spec.tile) : x.rows();
    const Quantized expected = output(spec, x.shape, width);
    quantize(
        *stream, scratch,
        {.x = x, .spec = spec, .out = expected, .scale = history ? &scale : nullptr, .amax = history ? &expected_amax : nullptr});
    const Quantized actual = in_shards(x, spec, ranks, width, history ? &scale : nullptr, history ? &amax : nullptr);
    EXPECT_TRUE(same_bytes(actual.rowwise, expected.rowwise)) << what << " codes";
    EXPECT_TRUE(same_bytes(actual.rowwise_scale_inv, expected.rowwise_scale_inv)) << what << " scale_inv";
    EXPECT_TRUE(same_bytes(actual.columnwise, expected.columnwise)) << what << " codes_t";
    EXPECT_TRUE(same_bytes(actual.columnwise_scale_inv, expected.columnwise_scale_inv)) << what << " scale_inv_t";
    EXPECT_EQ(std::bit_cast<std::uint32_t>(amax), std::bit_cast<std::uint32_t>(expected_amax)) << what << " amax";
  }
};

TEST_F(ShardTest, TogetherHaveTheBytesOfTheWhole) {
  for (const Shape& shape : {Shape{64, 48}, Shape{256, 384}, Shape{130, 272}, Shape{16, 16}, Shape{1, 4096}, Shape{37, 45}}) {
    for (const Fill fill : testing::kFills) {
      for (const DType dtype : {DType::bf16, DType::f32}) {
        const Tensor x = source(dtype, shape, fill);
        for (const QuantSpec& spec : testing::weight_specs()) {
          for (const std::int64_t ranks : {1, 2, 3, 8}) {
            check(x, spec, ranks, concat(testing::case_name(spec, shape, dtype, fill), " on ", ranks, " ranks"));
            if (HasFailure()) return;
          }
        }
      }
    }
  }
}

TEST_F(ShardTest, BothOrientationsInOnePassAreThoseOfTwo) {
  const Shape whole{130, 272};
  const Tensor x = source(DType::bf16, whole, Fill::wide);
  const Shard shard = cut(x, 3)[1];
  for (const ScaleTile tile : {ScaleTile::row, ScaleTile::mx_1x32}) {
    Tensor grids[2][2], codes[2][2];
    for (auto& pass : grids) {
      pass[0] = zeros(DType::f32, amax_shape(tile, Along::rows, whole));
      pass[1] = zeros(DType::f32, amax_shape(tile, Along::columns, whole));
    }
    shard_amax(*stream, {.shard = shard, .tile = tile, .rows = grids[0][0], .columns = grids[0][1]});
    shard_amax(*stream, {.shard = shard, .tile = tile, .rows = grids[1][0], .columns = {}});
    shard_amax(*stream, {.shard = shard, .tile = tile, .rows = {}, .columns = grids[1][1]});
    for (auto& pass : codes) {
      for (Tensor& part : pass) part = zeros(DType::f8_e4m3, shard.x.shape);
    }
    CastShard op{.shard = shard,
                 .spec = {.tile = tile},
                 .codes = codes[0][0],
                 .multipliers = filled(DType::f32, grids[0][0].shape,
                                       [](std::int64_t i) { return std::ldexp(1.0, static_cast<int>(i % 60) - 30); }),
                 .column_codes = codes[0][1],
                 .column_multipliers = filled(DType::f32, grids[0][1].shape,
                                              [](std::int64_t i) { return std::ldexp(1.5, static_cast<int>(i % 60) - 30); })};
    cast_shard(*stream, op);
    op.codes = codes[1][0];
    op.column_codes = {};
    cast_shard(*stream, op);
    op.codes = {};
    op.column_codes = codes[1][1];
    cast_shard(*stream, op);
    for (int part = 0; part < 2; ++part) {
      EXPECT_TRUE(same_bytes(grids[0][part], grids[1][part]));
      EXPECT_TRUE(same_bytes(codes[0][part], codes[1][part]));
    }
  }
}

TEST_F(ShardTest, AmaxIsAccumulated) {
  const Tensor x = source(DType::f32, {64, 48}, Fill::normal);
  const Tensor amax = filled(DType::f32, {64}, [](std::int64_t i) { return i % 2 ? 100.0 : 0.0; });
  shard_amax(*stream, {.shard = cut(x, 2)[1], .tile = ScaleTile::row, .rows = amax, .columns = {}});
  for (std::int64_t row = 0; row < 64; ++row) {
    const float value = amax.as<float>()[row];
    EXPECT_TRUE(row % 2 ? value == 100.0f : row < 32 ? value == 0.0f : value > 0.0f && value < 100.0f) << row << ": " << value;
  }
}

TEST_F(ShardTest, DoesNotDependOnThreads) {
  const Tensor x = source(DType::bf16, {530, 1104}, Fill::wide);
  for (const ScaleTile tile : kTiles) {
    expect_same_for_any_threads([&] {
      const Quantized q = in_shards(x, {.tile = tile}, 3, padded_k(530, tile), nullptr, nullptr);
      return std::vector<Tensor>{q.rowwise, q.rowwise_scale_inv, q.columnwise, q.columnwise_scale_inv};
    });
  }
}

TEST_F(ShardTest, MetaCountsTheSameWork) {
  const Tensor x = source(DType::bf16, {64, 48}, Fill::normal), codes = zeros(DType::f8_e4m3, {64 * 48});
  const Tensor amax = zeros(DType::f32, {64}), scale_inv = zeros(DType::f32, {64}), untouched = copy(codes);
  const auto program = [&](Stream& on) {
    const Shard shard = cut(x, 1)[0];
    const QuantSpec spec{.tile = ScaleTile::row};
    shard_amax(on, {.shard = shard, .tile = ScaleTile::row, .rows = amax, .columns = {}});
    scales_from_amax(on, {.amax = amax, .spec = spec, .whole = x.shape, .multipliers = amax, .scale_inv = scale_inv});
    cast_shard(on,
               {.shard = shard, .spec = spec, .codes = codes, .multipliers = amax, .column_codes = {}, .column_multipliers = {}});
  };
  program(*meta_stream);
  EXPECT_TRUE(same_bytes(codes, untouched));
  program(*stream);
  EXPECT_EQ(meta_stream->work().bytes, stream->work().bytes);
  EXPECT_EQ(stream->work().bytes, 2.0 * 64 * 48 * 2 + 3 * 64 * 4 + 64 * 48);
}

TEST_F(ShardTest, RefusesWhatIsNoShardOfAWeight) {
  const Tensor x = zeros(DType::bf16, {64 * 48}), amax = zeros(DType::f32, {64}), codes = zeros(DType::f8_e4m3, {64 * 48});
  const float scale = 1.0f;
  const Shape whole{64, 48};
  const auto amax_of = [&](Shard shard, ScaleTile tile) {
    return [=, this] { shard_amax(*stream, {.shard = shard, .tile = tile, .rows = amax, .columns = {}}); };
  };
  expect_refusal(amax_of({.x = x.slice_rows(0, 128), .first = 64, .whole = whole}, ScaleTile::row), "multiples of 128");
  expect_refusal(amax_of({.x = x.slice_rows(0, 100), .first = 128, .whole = whole}, ScaleTile::row), "multiples of 128");
  expect_refusal(amax_of({.x = x, .first = 128, .whole = whole}, ScaleTile::row), "multiples of 128");
  const Shard all{.x = x, .first = 0, .whole = whole};
  expect_refusal(amax_of(all, ScaleTile::block_1x128), "not a weight's");
  expect_refusal(amax_of(all, ScaleTile::tensor), "must be F32");
  expect_refusal([&] { (void)amax_shape(ScaleTile::tensor, Along::columns, whole); }, "no scales along columns");
  const auto cast_with = [&](const QuantSpec& spec, const float* given) {
    return [=, this] {
      cast_shard(*stream, {.shard = all,
                           .spec = spec,
                           .codes = codes,
                           .multipliers = amax,
                           .column_codes = {},
                           .column_multipliers = {},
                           .scale = given});
    };
  };
  expect_refusal(cast_with({.tile = ScaleTile::row}, &scale), "only then");
  expect_refusal(cast_with({.tile = ScaleTile::row, .source = ScaleSource::history}, &scale), "only a per-tensor tile");
  expect_refusal(cast_with({.source = ScaleSource::history}, &scale), "scale_inv must be");
  expect_refusal(cast_with({.tile = ScaleTile::mx_1x32}, nullptr), "multipliers must be");
}

}  // namespace
}  // namespace octet::kernels
