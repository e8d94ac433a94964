#include "octet/parallel/weight_cast.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <limits>
#include <utility>

#include "octet/base/require.h"
#include "octet/kernels/fill/fill.h"
#include "octet/kernels/quantize/quantize.h"
#include "octet/parallel/parameter.h"

namespace octet::parallel {

using kernels::Along;
using kernels::Shard;

namespace {

// The amaxes lie in sections, one for each set of ranks that reduce them: the ranks that hold the shards of dense weights or of
// experts, with or without the tensor axis.
enum Section : int { dense, dense_across_tensor, experts_across_tensor, experts, kSections };

Tensor flat_codes(const Tensor& x) { return x ? x.reshape({x.elements()}) : x; }

Shard as_shard(const Parameter& p) {
  return {.x = p.cast_source().reshape({p.shard_elements}), .first = p.first_element, .whole = p.spec.shape};
}

}  // namespace

WeightCast::WeightCast(Device& device, const std::deque<Parameter>& parameters, const Groups* groups)
    : groups_(groups && (groups->shards->size() > 1 || groups->tensor->size() > 1) ? groups : nullptr) {
  for (const Parameter& p : parameters) {
    if (p.held && p.spec.quant) weights_.push_back({&p});
  }
  const std::int64_t count = lay_out();
  if (count == 0) return;
  memory_ = device.allocate(bytes_of(DType::f32, {count}), MemoryCategory::state);
  amaxes_ = view(memory_, DType::f32, {count});
  lay_out();
}

// Returns nothing if the scale comes from a history, or serves both directions. The ranks of the tensor axis share the one tile
// of a whole tensor, the tiles of rows if columns are cut, and the tiles of columns if rows are cut. A block belongs to one rank.
std::optional<int> WeightCast::section_of(const Parameter& p, Along along) const {
  const QuantSpec& spec = *p.spec.quant;
  if (spec.source == ScaleSource::history || (along == Along::columns && kernels::is_square(spec.tile))) return {};
  const bool is_cut = p.spec.cut.along == (along == Along::rows ? Cut::columns : Cut::rows);
  const bool across = spec.tile == ScaleTile::tensor || (spec.tile == ScaleTile::row && is_cut);
  if (p.spec.expert && groups_->apart) return across ? experts_across_tensor : experts;
  return across ? dense_across_tensor : dense;
}

// Gives the amaxes their places in amaxes_, which may be there only later. Returns how many there are.
std::int64_t WeightCast::lay_out() {
  if (!groups_) return 0;
  std::int64_t count = 0;
  for (int section = 0; section < kSections; ++section) {
    for (Weight& weight : weights_) {
      for (const Along along : {Along::rows, Along::columns}) {
        if (section_of(*weight.parameter, along) != section) continue;
        const Shape shape = kernels::amax_shape(weight.parameter->spec.quant->tile, along, weight.parameter->spec.shape);
        Tensor& grid = along == Along::rows ? weight.rows : weight.columns;
        grid = {behind(amaxes_.data, bytes_of(DType::f32, {count})), DType::f32, shape};
        count += shape.elements();
      }
    }
  }
  return count;
}

// Returns the amaxes of a section from the first one of these weights to the last one; absent if there are none.
Tensor WeightCast::stretch(int section, std::span<const Weight> weights) const {
  Tensor result;
  for (const Weight& weight : weights) {
    for (const Along along : {Along::rows, Along::columns}) {
      if (section_of(*weight.parameter, along) != section) continue;
      const Tensor& grid = along == Along::rows ? weight.rows : weight.columns;
      if (!result) result = {grid.data, grid.dtype, {0}};
      result.shape = {grid.as<float>() + grid.elements() - result.as<float>()};
    }
  }
  return result;
}

void WeightCast::reduce_amaxes(Stream& stream, Arena& scratch, std::span<const Weight> weights) const {
  const auto reduce = [&](comm::Group& group, const std::array<Section, 2>& sections) {
    const comm::Batch batch(group, stream);
    for (const Section section : sections) {
      const Tensor amaxes = stretch(section, weights);
      if (amaxes) group.all_reduce(stream, scratch, {.x = amaxes, .reduction = comm::Reduction::max});
    }
  };
  reduce(*groups_->shards, {dense, dense_across_tensor});
  reduce(groups_->expert_shards(), {experts, experts_across_tensor});
  reduce(*groups_->tensor, {dense_across_tensor, experts_across_tensor});
}

struct WeightCast::Ops {
  // What the casts of one list have in common.
  struct Kind {
    DType dtype;
    Fp8Format format;
    ScaleTile tile;
    ScaleSource source;
    bool columns;
    bool operator==(const Kind&) const = default;
  };

  // Sorts ops by kind.
  template <class Op>
  class ByKind {
   public:
    std::vector<Op>& of(const Kind& kind) {
      const auto known = std::find_if(kinds_.begin(), kinds_.end(), [&](const auto& entry) { return entry.first == kind; });
      return known == kinds_.end() ? kinds_.emplace_back(kind, std::vector<Op>{}).second : known->second;
    }
    std::vector<kernels::CastList<Op>> lists(Device& device) {
      std::vector<kernels::CastList<Op>> result;
      for (auto& [kind, ops] : kinds_) result.emplace_back(device, std::move(ops));
      return result;
    }
    template <class Run>
    void each(const Run& run) const {
      for (const auto& [kind, ops] : kinds_) std::for_each(ops.begin(), ops.end(), run);
    }

   private:
    std::vector<std::pair<Kind, std::vector<Op>>> kinds_;
  };

  std::vector<Tensor> recorded;
  ByKind<kernels::Quantize> whole;
  ByKind<kernels::ShardAmax> amaxes;
  ByKind<kernels::ScalesFromAmax> scales;
  ByKind<kernels::CastShard> shards;
};

WeightCast::Ops WeightCast::ops_of(std::span<const Weight> weights) const {
  Ops result;
  for (const auto& [parameter, rows, columns] : weights) {
    const Parameter& p = *parameter;
    const QuantSpec& spec = *p.spec.quant;
    const ScaleSlot& slot = p.scale_slot;
    const bool history = spec.source == ScaleSource::history;
    const Ops::Kind kind{p.cast_source().dtype, spec.format, spec.tile, spec.source, static_cast<bool>(columns)};
    if (slot.amax) result.recorded.emplace_back(slot.amax, DType::f32, Shape{1});
    if (!groups_) {
      result.whole.of(kind).push_back({.x = p.cast_source(), .spec = spec, .out = p.codes, .scale = slot.scale, .amax = slot.amax});
      continue;
    }
    if (rows) result.amaxes.of(kind).push_back({.shard = as_shard(p), .tile = spec.tile, .rows = rows, .columns = columns});
    const auto add_scales = [&](const Tensor& grid, Along along, const Tensor& scale_inv) {
      result.scales.of(kind).push_back(
          {.amax = grid, .spec = spec, .along = along, .whole = p.spec.shape, .multipliers = grid, .scale_inv = scale_inv});
    };
    if (!history) add_scales(rows, Along::rows, p.codes.rowwise_scale_inv);
    if (!history && columns) add_scales(columns, Along::columns, p.codes.columnwise_scale_inv);
    kernels::CastShard cast{.shard = as_shard(p), .spec = spec, .codes = flat_codes(p.rowwise_shard)};
    if (history) {
      cast.scale = slot.scale;
      cast.scale_inv = p.codes.rowwise_scale_inv;
      cast.amax = slot.amax;
    } else {
      cast.multipliers = rows;
      cast.column_codes = flat_codes(p.columnwise_shard);
      cast.column_multipliers = columns;
    }
    result.shards.of(kind).push_back(std::move(cast));
  }
  return result;
}

WeightCast::Casts WeightCast::casts_of(Device& device, UnitRange units, std::vector<Weight> weights) const {
  Ops ops = ops_of(weights);
  return {.units = units,
          .weights = std::move(weights),
          .recorded = {device, std::move(ops.recorded)},
          .whole = ops.whole.lists(device),
          .amaxes = ops.amaxes.lists(device),
          .scales = ops.scales.lists(device),
          .shards = ops.shards.lists(device)};
}

std::vector<WeightCast::Weight> WeightCast::trained(UnitRange units) const {
  std::vector<Weight> result;
  std::copy_if(weights_.begin(), weights_.end(), std::back_inserter(result),
               [&](const Weight& weight) { return units.contains(weight.parameter->unit) && !weight.parameter->spec.frozen; });
  return result;
}

void WeightCast::prepare(Device& device, UnitRange units) { casts_.push_back(casts_of(device, units, trained(units))); }

void WeightCast::run(Stream& stream, Arena& scratch, UnitRange units) const {
  const auto casts = std::find_if(casts_.begin(), casts_.end(), [&](const Casts& known) { return known.units == units; });
  require(casts != casts_.end(), "casts of units ", units.begin, " to ", units.end, " were not prepared");
  run(stream, scratch, *casts);
}

void WeightCast::run(Stream& stream, Arena& scratch) const {
  run_once(stream, scratch, trained({0, std::numeric_limits<int>::max()}));
}

void WeightCast::run(Stream& stream, Arena& scratch, const Parameter& parameter) const {
  const auto weight =
      std::find_if(weights_.begin(), weights_.end(), [&](const Weight& known) { return known.parameter == &parameter; });
  run_once(stream, scratch, std::span(weight, 1));
}

void WeightCast::run_once(Stream& stream, Arena& scratch, std::span<const Weight> weights) const {
  const Ops ops = ops_of(weights);
  for (const Tensor& amax : ops.recorded) stream.zero(amax.data, amax.bytes());
  ops.whole.each([&](const kernels::Quantize& op) { kernels::quantize(stream, scratch, op); });
  if (!groups_) return;
  if (amaxes_) {
    stream.zero(amaxes_.data, amaxes_.bytes());
    ops.amaxes.each([&](const kernels::ShardAmax& op) { kernels::shard_amax(stream, op); });
    reduce_amaxes(stream, scratch, weights);
  }
  ops.scales.each([&](const kernels::ScalesFromAmax& op) { kernels::scales_from_amax(stream, op); });
  ops.shards.each([&](const kernels::CastShard& op) { kernels::cast_shard(stream, op); });
  transpose_wholes(stream, weights);
}

void WeightCast::run(Stream& stream, Arena& scratch, const Casts& casts) const {
  kernels::zero(stream, {.x = casts.recorded});
  for (const auto& list : casts.whole) kernels::quantize(stream, scratch, list);
  if (!groups_) return;
  if (amaxes_) {
    stream.zero(amaxes_.data, amaxes_.bytes());
    for (const auto& list : casts.amaxes) kernels::shard_amax(stream, list);
    reduce_amaxes(stream, scratch, casts.weights);
  }
  for (const auto& list : casts.scales) kernels::scales_from_amax(stream, list);
  for (const auto& list : casts.shards) kernels::cast_shard(stream, list);
  transpose_wholes(stream, casts.weights);
}

void WeightCast::transpose_wholes(Stream& stream, std::span<const Weight> weights) const {
  if (groups_->shards->size() > 1) return;
  for (const auto& [parameter, rows, columns] : weights) {
    Quantized q = parameter->codes;
    if (!q.columnwise) continue;
    if (parameter->column_codes) q.rowwise = parameter->column_codes;
    kernels::transpose_codes(stream, q);
  }
}

}  // namespace octet::parallel
