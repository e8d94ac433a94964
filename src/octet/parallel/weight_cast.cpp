#include "octet/parallel/weight_cast.h"

#include <algorithm>
#include <array>
#include <utility>

#include "octet/base/require.h"
#include "octet/kernels/fill/fill.h"
#include "octet/kernels/quantize/quantize.h"
#include "octet/parallel/parameter.h"

namespace octet::parallel {

using kernels::Along;
using kernels::Shard;

namespace {

// Amaxes that are reduced over the same groups lie together, so that one all-reduce serves them: those of the shards of dense
// weights or of experts, with or without the tensor axis.
enum Section : int { dense, dense_across_tensor, experts_across_tensor, experts, kSections };

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
  if (p.spec.expert && groups_->expert_data) return across ? experts_across_tensor : experts;
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

void WeightCast::add_ops(const Weight& weight, Ops& ops) const {
  const auto& [parameter, rows, columns] = weight;
  const Parameter& p = *parameter;
  const QuantSpec& spec = *p.spec.quant;
  const ScaleSlot& slot = p.scale_slot;
  const bool history = spec.source == ScaleSource::history;
  if (!groups_) {
    ops.whole.push_back({.x = p.cast_source(), .spec = spec, .out = p.codes, .scale = slot.scale, .amax = slot.amax});
    return;
  }
  const Shard shard{.x = p.cast_source().flat(), .first = p.first_element, .whole = p.spec.shape};
  if (rows) ops.amaxes.push_back({.shard = shard, .tile = spec.tile, .rows = rows, .columns = columns});
  const auto add_scales = [&](const Tensor& grid, Along along, const Tensor& scale_inv) {
    ops.scales.push_back(
        {.amax = grid, .spec = spec, .along = along, .whole = p.spec.shape, .multipliers = grid, .scale_inv = scale_inv});
  };
  if (!history) add_scales(rows, Along::rows, p.codes.rowwise_scale_inv);
  if (!history && columns) add_scales(columns, Along::columns, p.codes.columnwise_scale_inv);
  kernels::CastShard cast{.shard = shard, .spec = spec, .codes = p.rowwise_shard.flat()};
  if (history) {
    cast.scale = slot.scale;
    cast.scale_inv = p.codes.rowwise_scale_inv;
    cast.amax = slot.amax;
  } else {
    cast.multipliers = rows;
    if (p.columnwise_shard) cast.column_codes = p.columnwise_shard.flat();
    cast.column_multipliers = columns;
  }
  ops.shards.push_back(std::move(cast));
}

void WeightCast::prepare(Device& device, UnitRange units) {
  struct Kind {
    DType dtype;
    Fp8Format format;
    ScaleTile tile;
    ScaleSource source;
    bool columns;
    bool operator==(const Kind&) const = default;
  };
  std::vector<std::pair<Kind, Ops>> kinds;
  std::vector<Weight> weights;
  std::vector<Tensor> recorded;
  for (const Weight& weight : weights_) {
    const Parameter& p = *weight.parameter;
    if (!units.contains(p.unit) || p.spec.frozen) continue;
    weights.push_back(weight);
    const QuantSpec& spec = *p.spec.quant;
    const Kind kind{p.cast_source().dtype, spec.format, spec.tile, spec.source, static_cast<bool>(weight.columns)};
    auto of = std::find_if(kinds.begin(), kinds.end(), [&](const auto& known) { return known.first == kind; });
    if (of == kinds.end()) of = kinds.insert(of, {kind, {}});
    add_ops(weight, of->second);
    if (p.scale_slot.amax) recorded.emplace_back(p.scale_slot.amax, DType::f32, Shape{1});
  }
  const auto lists = [&]<class Op>(std::vector<Op> Ops::*ops) {
    std::vector<kernels::CastList<Op>> result;
    for (auto& [kind, of] : kinds) {
      if (!(of.*ops).empty()) result.emplace_back(device, std::move(of.*ops));
    }
    return result;
  };
  casts_.push_back({.units = units,
                    .weights = std::move(weights),
                    .recorded = {device, std::move(recorded)},
                    .whole = lists(&Ops::whole),
                    .amaxes = lists(&Ops::amaxes),
                    .scales = lists(&Ops::scales),
                    .shards = lists(&Ops::shards)});
}

void WeightCast::run(Stream& stream, Arena& scratch, UnitRange units) const {
  const auto casts = std::find_if(casts_.begin(), casts_.end(), [&](const Casts& known) { return known.units == units; });
  require(casts != casts_.end(), "casts of units ", units.begin, " to ", units.end, " were not prepared");
  kernels::zero(stream, {.x = casts->recorded});
  run(stream, scratch, *casts, casts->weights);
}

void WeightCast::run(Stream& stream, Arena& scratch, const Parameter& parameter) const {
  const auto weight =
      std::find_if(weights_.begin(), weights_.end(), [&](const Weight& known) { return known.parameter == &parameter; });
  Ops ops;
  add_ops(*weight, ops);
  if (parameter.scale_slot.amax) stream.zero(parameter.scale_slot.amax, sizeof(float));
  run(stream, scratch, ops, std::span(weight, 1));
}

template <class Work>
void WeightCast::run(Stream& stream, Arena& scratch, const Work& work, std::span<const Weight> weights) const {
  for (const auto& op : work.whole) kernels::quantize(stream, scratch, op);
  if (!groups_) return;
  if (amaxes_) {
    stream.zero(amaxes_.data, amaxes_.bytes());
    for (const auto& op : work.amaxes) kernels::shard_amax(stream, op);
    reduce_amaxes(stream, scratch, weights);
  }
  for (const auto& op : work.scales) kernels::scales_from_amax(stream, op);
  for (const auto& op : work.shards) kernels::cast_shard(stream, op);
  if (groups_->shards->size() > 1) return;
  // Only a tensor axis divides the weights. No rank gathers them, so their columnwise codes are made here.
  for (const auto& [parameter, rows, columns] : weights) {
    Quantized q = parameter->codes;
    if (!q.columnwise) continue;
    if (parameter->column_codes) q.rowwise = parameter->column_codes;
    kernels::transpose_codes(stream, q);
  }
}

}  // namespace octet::parallel
