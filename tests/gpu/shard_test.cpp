#include "octet/kernels/quantize/shard.h"

#include <cmath>
#include <vector>

#include "gpu/twins.h"
#include "octet/base/math.h"
#include "octet/kernels/quantize/quantize.h"
#include "support/quantize_cases.h"

namespace octet::kernels {
namespace {

using testing::Fill;
using testing::Twin;

struct ShardGpuTest : testing::TwinTest {
  Twin source(DType dtype, const Shape& shape, Fill fill) {
    const std::int64_t count = shape.elements();
    return filled(dtype, {count}, [&](std::int64_t i) { return testing::fill_value(fill, i, count); });
  }

  static Twin part(const Twin& whole, std::int64_t first, std::int64_t end) {
    return {whole.cpu.slice_rows(first, end), whole.gpu.slice_rows(first, end)};
  }

  // Calls op(stream, side) for both sides. `side` returns a twin's tensor of that side.
  template <class Op>
  void on_both(Op op) {
    op(*cpu_stream, [](const Twin& twin) { return twin.cpu; });
    op(*gpu_stream, [](const Twin& twin) { return twin.gpu; });
  }

  struct Scales {
    Twin amax, multipliers, scale_inv;
  };
  Scales scales(const QuantSpec& spec, Along along, const Shape& whole) {
    const bool rows = along == Along::rows;
    const Shape grid = amax_shape(spec.tile, along, whole);
    const std::int64_t k = rows ? whole[1] : padded_k(whole[0], spec.tile);
    return {.amax = zeros(DType::f32, grid),
            .multipliers = poisoned(DType::f32, grid),
            .scale_inv = poisoned(scale_dtype(spec.tile), scale_shape(spec.tile, whole[rows ? 0 : 1], k))};
  }

  // Computes the amaxes of the shards of `ranks` ranks, one after the other, in one grid. Then computes the codes in the same
  // way.
  void check(const Twin& x, const Shape& whole, const QuantSpec& spec, std::int64_t ranks, const std::string& what) {
    const bool history = spec.source == ScaleSource::history, square = is_square(spec.tile);
    const std::int64_t all = whole.elements(), size = round_up(ceil_div(all, ranks), 128);
    const Scales rows = scales(spec, Along::rows, whole), columns = square ? Scales() : scales(spec, Along::columns, whole);
    const Twin codes = poisoned(dtype_of(spec.format), {all});
    const Twin column_codes = square ? Twin() : poisoned(dtype_of(spec.format), {all});
    const Twin scale = filled(DType::f32, {1}, [](std::int64_t) { return 37.5; });
    const Twin amax = filled(DType::f32, {1}, [](std::int64_t) { return 0.25; });
    const auto for_shards = [&](auto body) {
      for (std::int64_t rank = 0; rank < ranks; ++rank) {
        const std::int64_t first = std::min(all, rank * size);
        body(first, std::min(all, first + size));
      }
    };
    for_shards([&](std::int64_t first, std::int64_t end) {
      on_both([&](Stream& stream, auto side) {
        shard_amax(stream, {.shard = {.x = side(part(x, first, end)), .first = first, .whole = whole},
                            .tile = spec.tile,
                            .rows = side(rows.amax),
                            .columns = side(columns.amax)});
      });
    });
    for (const auto& [made, along] : {std::pair{&rows, Along::rows}, std::pair{&columns, Along::columns}}) {
      if (!made->amax.cpu) continue;
      const std::string where = what + (along == Along::rows ? " rows" : " columns");
      expect_same_bytes(made->amax, where + " amax");
      if (history) continue;
      on_both([&](Stream& stream, auto side) {
        scales_from_amax(stream, {.amax = side(made->amax),
                                  .spec = spec,
                                  .along = along,
                                  .whole = whole,
                                  .multipliers = side(made->multipliers),
                                  .scale_inv = side(made->scale_inv)});
      });
      expect_same_bytes(made->multipliers, where + " multipliers");
    }
    for_shards([&](std::int64_t first, std::int64_t end) {
      on_both([&](Stream& stream, auto side) {
        cast_shard(stream, {.shard = {.x = side(part(x, first, end)), .first = first, .whole = whole},
                            .spec = spec,
                            .codes = side(part(codes, first, end)),
                            .multipliers = history ? Tensor() : side(rows.multipliers),
                            .column_codes = square ? Tensor() : side(part(column_codes, first, end)),
                            .column_multipliers = side(columns.multipliers),
                            .scale = history ? side(scale).template as<float>() : nullptr,
                            .scale_inv = history ? side(rows.scale_inv) : Tensor(),
                            .amax = history ? side(amax).template as<float>() : nullptr});
      });
    });
    expect_same_bytes(codes, what + " codes");
    expect_same_bytes(rows.scale_inv, what + " scale_inv");
    if (history) expect_same_bytes(amax, what + " recorded amax");
    if (square) return;
    expect_same_bytes(column_codes, what + " column codes");
    expect_same_bytes(columns.scale_inv, what + " scale_inv_t");
    const Twin columnwise = poisoned(dtype_of(spec.format), {whole[1], padded_k(whole[0], spec.tile)});
    on_both([&](Stream& stream, auto side) {
      transpose_codes(stream, {.format = spec.format,
                               .tile = spec.tile,
                               .rowwise = side(column_codes).reshape(whole),
                               .rowwise_scale_inv = {},
                               .columnwise = side(columnwise),
                               .columnwise_scale_inv = side(columns.scale_inv)});
    });
    expect_same_bytes(columnwise, what + " codes_t");
    expect_same_bytes(columns.scale_inv, what + " scale_inv_t after transposing");
  }
};

// Each shape is a test of its own, so that several processes of a sanitizer can share them.
struct ShardGpuShapes : ShardGpuTest, ::testing::WithParamInterface<Shape> {};
TEST_P(ShardGpuShapes, TheSameBytesForEveryTileAndValue) {
  const Shape whole = GetParam();
  for (const Fill fill : testing::kFills) {
    for (const DType dtype : {DType::bf16, DType::f32}) {
      const Twin x = source(dtype, whole, fill);
      for (const QuantSpec& spec : testing::weight_specs()) {
        for (const std::int64_t ranks : {1, 3, 8}) {
          check(x, whole, spec, ranks, concat(testing::case_name(spec, whole, dtype, fill), " on ", ranks, " ranks"));
          if (HasFailure()) return;
        }
      }
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Shapes, ShardGpuShapes,
                         ::testing::Values(Shape{64, 48}, Shape{256, 384}, Shape{130, 272}, Shape{16, 16}, Shape{1, 4096},
                                           Shape{300, 8}, Shape{37, 45}, Shape{200, 257}),
                         [](const auto& param) { return concat(param.param[0], "x", param.param[1]); });

TEST_F(ShardGpuTest, MatrixOfALargeLayer) {
  const Shape whole{1000, 4096};
  for (const DType dtype : {DType::bf16, DType::f32}) {
    const Twin x = source(dtype, whole, Fill::normal);
    for (const QuantSpec& spec : testing::weight_specs()) {
      check(x, whole, spec, 7, testing::case_name(spec, whole, dtype, Fill::normal));
    }
  }
}

}  // namespace
}  // namespace octet::kernels
