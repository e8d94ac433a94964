#include "octet/parallel/weight_cast.h"

#include <algorithm>
#include <array>
#include <iterator>

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

void WeightCast::cast_shard(Stream& stream, const Weight& weight) const {
  const Parameter& p = *weight.parameter;
  const QuantSpec& spec = *p.spec.quant;
  kernels::CastShard cast{.shard = as_shard(p), .spec = spec, .codes = flat_codes(p.rowwise_shard)};
  if (spec.source == ScaleSource::history) {
    cast.scale = p.scale_slot.scale;
    cast.scale_inv = p.codes.rowwise_scale_inv;
    cast.amax = p.scale_slot.amax;
    return kernels::cast_shard(stream, cast);
  }
  const auto scales = [&](const Tensor& grid, Along along, const Tensor& scale_inv) {
    kernels::scales_from_amax(
        stream, {.amax = grid, .spec = spec, .along = along, .whole = p.spec.shape, .multipliers = grid, .scale_inv = scale_inv});
  };
  scales(weight.rows, Along::rows, p.codes.rowwise_scale_inv);
  if (weight.columns) scales(weight.columns, Along::columns, p.codes.columnwise_scale_inv);
  cast.multipliers = weight.rows;
  cast.column_codes = flat_codes(p.columnwise_shard);
  cast.column_multipliers = weight.columns;
  kernels::cast_shard(stream, cast);
}

void WeightCast::run(Stream& stream, Arena& scratch, UnitRange units) const {
  std::vector<Weight> cast;
  std::copy_if(weights_.begin(), weights_.end(), std::back_inserter(cast),
               [&](const Weight& weight) { return units.contains(weight.parameter->unit) && !weight.parameter->spec.frozen; });
  run(stream, scratch, cast);
}

void WeightCast::run(Stream& stream, Arena& scratch, const Parameter& parameter) const {
  const auto weight =
      std::find_if(weights_.begin(), weights_.end(), [&](const Weight& known) { return known.parameter == &parameter; });
  run(stream, scratch, std::span(&*weight, 1));
}

void WeightCast::run(Stream& stream, Arena& scratch, std::span<const Weight> cast) const {
  for (const auto& [p, rows, columns] : cast) {
    if (p->scale_slot.amax) stream.zero(p->scale_slot.amax, sizeof(float));
  }
  if (!groups_) {
    for (const auto& [p, rows, columns] : cast) {
      const ScaleSlot& slot = p->scale_slot;
      kernels::quantize(stream, scratch,
                        {.x = p->cast_source(), .spec = *p->spec.quant, .out = p->codes, .scale = slot.scale, .amax = slot.amax});
    }
    return;
  }
  if (amaxes_) {
    stream.zero(amaxes_.data, amaxes_.bytes());
    for (const auto& [p, rows, columns] : cast) {
      if (rows)
        kernels::shard_amax(stream, {.shard = as_shard(*p), .tile = p->spec.quant->tile, .rows = rows, .columns = columns});
    }
    reduce_amaxes(stream, scratch, cast);
  }
  for (const Weight& weight : cast) cast_shard(stream, weight);
}

}  // namespace octet::parallel
