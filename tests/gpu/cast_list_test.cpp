// One launch over many weights has the bits of the CPU's casts of each of them.
#include "octet/kernels/quantize/cast_list.h"

#include <array>
#include <vector>

#include "gpu/twins.h"
#include "support/quantize_cases.h"

namespace octet::kernels {
namespace {

using testing::QuantizedTwin;
using testing::Twin;

const std::array<Shape, 5> kShapes = {Shape{256, 384}, Shape{16, 16}, Shape{144, 80}, Shape{400, 32}, Shape{128, 128}};

struct CastListOnGpu : testing::TwinTest {
  Twin source(DType dtype, const Shape& shape, std::int64_t number) {
    const testing::Fill fill = testing::kFills[static_cast<std::size_t>(number) % std::size(testing::kFills)];
    return filled(dtype, shape, [&](std::int64_t i) { return testing::fill_value(fill, i, shape.elements()); });
  }
};

TEST_F(CastListOnGpu, QuantizesLikeTheCpu) {
  for (const QuantSpec& spec : testing::weight_specs()) {
    const bool history = spec.source == ScaleSource::history;
    for (const DType dtype : {DType::bf16, DType::f32}) {
      std::vector<Quantize> on_cpu, on_gpu;
      std::vector<QuantizedTwin> results;
      std::vector<Twin> amaxes;
      for (std::size_t i = 0; i < kShapes.size(); ++i) {
        const Twin x = source(dtype, kShapes[i], static_cast<std::int64_t>(i));
        const Twin scale = filled(DType::f32, {1}, [&](std::int64_t) { return 3.5 * static_cast<double>(i + 1); });
        amaxes.push_back(filled(DType::f32, {1}, [](std::int64_t) { return 0.25; }));
        results.push_back(quantized(spec, kShapes[i][0], kShapes[i][1]));
        const auto op = [&](const Tensor& from, const Quantized& out, Tensor Twin::*side) {
          return Quantize{.x = from,
                          .spec = spec,
                          .out = out,
                          .scale = history ? (scale.*side).as<float>() : nullptr,
                          .amax = history ? (amaxes.back().*side).as<float>() : nullptr};
        };
        on_cpu.push_back(op(x.cpu, results.back().cpu, &Twin::cpu));
        on_gpu.push_back(op(x.gpu, results.back().gpu, &Twin::gpu));
      }
      for (const Quantize& op : on_cpu) quantize(*cpu_stream, cpu_scratch, op);
      const CastList<Quantize> list(*gpu, on_gpu);
      quantize(*gpu_stream, gpu_scratch, list);
      for (std::size_t i = 0; i < kShapes.size(); ++i) {
        const std::string what = testing::case_name(spec, kShapes[i], dtype, testing::kFills[0]);
        expect_same_bytes(results[i], what);
        expect_same_bytes(amaxes[i], what + " amax");
      }
    }
  }
}

// Each list has the middle one of three shards of each weight.
TEST_F(CastListOnGpu, CastsShardsLikeTheCpu) {
  for (const QuantSpec& spec : testing::weight_specs()) {
    const bool history = spec.source == ScaleSource::history, square = is_square(spec.tile);
    std::array<std::vector<ShardAmax>, 2> amaxes;
    std::array<std::vector<ScalesFromAmax>, 2> scales;
    std::array<std::vector<CastShard>, 2> casts;
    std::vector<Twin> results;
    for (std::size_t i = 0; i < kShapes.size(); ++i) {
      const Shape& whole = kShapes[i];
      const std::int64_t all = whole.elements(), size = round_up(ceil_div(all, std::int64_t{3}), 128);
      const std::int64_t first = std::min(all, size), end = std::min(all, 2 * size);
      const Twin x = source(DType::f32, {all}, static_cast<std::int64_t>(i)),
                 codes = poisoned(dtype_of(spec.format), {end - first});
      const Twin column_codes = poisoned(dtype_of(spec.format), {end - first});
      const Twin rows = zeros(DType::f32, amax_shape(spec.tile, Along::rows, whole));
      const Twin columns = square ? Twin() : zeros(DType::f32, amax_shape(spec.tile, Along::columns, whole));
      const Twin scale_inv = poisoned(scale_dtype(spec.tile), scale_shape(spec.tile, whole[0], whole[1]));
      const Twin scale_inv_t =
          square ? Twin() : poisoned(scale_dtype(spec.tile), scale_shape(spec.tile, whole[1], padded_k(whole[0], spec.tile)));
      const Twin scale = filled(DType::f32, {1}, [](std::int64_t) { return 37.5; });
      for (const Twin* result : {&codes, &rows, &scale_inv}) results.push_back(*result);
      if (!square) results.insert(results.end(), {column_codes, columns, scale_inv_t});
      for (std::size_t side = 0; side < 2; ++side) {
        const auto of = [&](const Twin& twin) { return side == 0 ? twin.cpu : twin.gpu; };
        const Shard shard{.x = of(x).slice_rows(first, end), .first = first, .whole = whole};
        CastShard cast{.shard = shard, .spec = spec, .codes = of(codes)};
        if (history) {
          cast.scale = of(scale).as<float>();
          cast.scale_inv = of(scale_inv);
        } else {
          amaxes[side].push_back({.shard = shard, .tile = spec.tile, .rows = of(rows), .columns = of(columns)});
          scales[side].push_back(
              {.amax = of(rows), .spec = spec, .whole = whole, .multipliers = of(rows), .scale_inv = of(scale_inv)});
          cast.multipliers = of(rows);
        }
        if (!history && !square) {
          scales[side].push_back({.amax = of(columns),
                                  .spec = spec,
                                  .along = Along::columns,
                                  .whole = whole,
                                  .multipliers = of(columns),
                                  .scale_inv = of(scale_inv_t)});
          cast.column_codes = of(column_codes);
          cast.column_multipliers = of(columns);
        }
        casts[side].push_back(cast);
      }
    }
    for (const ShardAmax& op : amaxes[0]) shard_amax(*cpu_stream, op);
    for (const ScalesFromAmax& op : scales[0]) scales_from_amax(*cpu_stream, op);
    for (const CastShard& op : casts[0]) cast_shard(*cpu_stream, op);
    const CastList<ShardAmax> amax_list(*gpu, amaxes[1]);
    const CastList<ScalesFromAmax> scales_list(*gpu, scales[1]);
    const CastList<CastShard> cast_list(*gpu, casts[1]);
    shard_amax(*gpu_stream, amax_list);
    scales_from_amax(*gpu_stream, scales_list);
    cast_shard(*gpu_stream, cast_list);
    for (std::size_t i = 0; i < results.size(); ++i) {
      expect_same_bytes(results[i], concat(testing::case_name(spec, kShapes[0], DType::f32, testing::kFills[0]), " result ", i));
    }
  }
}

}  // namespace
}  // namespace octet::kernels
