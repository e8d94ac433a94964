#include "octet/parallel/parameter.h"

#include <algorithm>
#include <utility>

#include "octet/base/math.h"
#include "octet/base/rng.h"
#include "octet/kernels/elementwise/elementwise.h"
#include "octet/kernels/fill/fill.h"
#include "octet/kernels/quantize/quantize.h"
#include "octet/kernels/quantize/shard.h"

namespace octet::parallel {

using kernels::Along;
using kernels::Shard;

int ParameterStore::begin_unit(int stage) {
  stage_of_unit_ = stage;
  return unit_ = units_++;
}

Parameter& ParameterStore::add(ParameterSpec spec) {
  if (units_ == 0) begin_unit();
  parameters_.emplace_back();
  Parameter& p = parameters_.back();
  if (spec.expert) {
    require(spec.expert.index >= 0 && spec.expert.index < spec.expert.count && spec.expert.count % expert_place_.size == 0,
            spec.name, ": expert ", spec.expert.index, " of ", spec.expert.count, " among ", expert_place_.size, " ranks");
  }
  p.stage = stage_of_unit_;
  p.held = p.stage == stage_ && expert_place_.holds(spec.expert);
  p.cut = TensorCut(spec.shape, spec.cut, place_);
  p.spec = std::move(spec);
  p.spec.shape = p.cut.local();
  p.unit = unit_;
  return p;
}

std::int64_t ParameterStore::elements() const {
  std::int64_t sum = 0;
  for (const Parameter& p : parameters_) sum += p.elements();
  return sum;
}

Tensor shard_of(const Parameter& p, const Tensor& padded, int rank) {
  return padded.slice_rows(rank * p.stride, rank * p.stride + p.shard_elements);
}

Tensor ParameterStore::allocate(Device& device, MemoryCategory category, DType dtype, Shape shape) {
  buffers_.push_back(device.allocate(bytes_of(dtype, shape), category));
  return view(buffers_.back(), dtype, shape);
}

Tensor ParameterStore::allocate_shard(Device& device, MemoryCategory category, DType dtype, const Parameter& p) {
  if (p.shard_count() == 1) return allocate(device, category, dtype, p.spec.shape);
  return allocate(device, category, dtype, {p.stride}).slice_rows(0, p.shard_elements);
}

Tensor ParameterStore::gathered_shard(DType dtype, const Parameter& p) {
  Gathered& gathered = gathered_[group_of(p)];
  const Tensor part(behind(gathered.parts.data(), gathered.used), dtype, {p.shard_elements});
  gathered.used += round_up(bytes_of(dtype, {p.stride}), Device::kAlignment);
  return part;
}

void ParameterStore::materialise_gathered_shards(Device& device) {
  const auto place = [&] {
    for (Gathered& gathered : gathered_) gathered.used = 0;
    for (Parameter& p : parameters_) {
      const auto shard = [&](Copy copy, Tensor& tensor) {
        if (p.copy(copy).place == Place::slot) tensor = gathered_shard(p.copy(copy).dtype, p);
      };
      shard(Copy::values, p.value_shard);
      shard(Copy::rowwise, p.rowwise_shard);
      shard(Copy::row_order, p.columnwise_shard);
    }
  };
  place();
  for (Gathered& gathered : gathered_) gathered.parts = device.allocate(gathered.used, MemoryCategory::weights);
  place();
}

void ParameterStore::allocate_whole(Device& device, MemoryCategory category, DType dtype, const Parameter& p, Tensor& whole,
                                    Tensor& part) {
  if (p.shard_count() == 1) {
    whole = part = allocate(device, category, dtype, p.spec.shape);
    return;
  }
  const Tensor padded = allocate(device, category, dtype, {p.shard_count() * p.stride});
  whole = {padded.data, dtype, p.spec.shape};
  part = shard_of(p, padded, p.shards->rank());
}

void ParameterStore::materialise_codes(Device& device, Parameter& p) {
  const QuantSpec& spec = *p.spec.quant;
  const std::int64_t rows = p.spec.shape[0], cols = p.spec.shape[1];
  Quantized& q = p.codes;
  q.format = spec.format;
  q.tile = spec.tile;
  q.rowwise_scale_inv = allocate(device, MemoryCategory::weights, scale_dtype(spec.tile), scale_shape(spec.tile, rows, cols));
  const Held& columnwise = p.copy(Copy::columnwise);
  if (columnwise.has_whole() || p.copy(Copy::row_order).has_whole()) {
    q.columnwise_scale_inv = spec.tile == ScaleTile::tensor ? q.rowwise_scale_inv
                                                            : allocate(device, MemoryCategory::weights, scale_dtype(spec.tile),
                                                                       scale_shape(spec.tile, cols, rows));
  }
  if (columnwise.has_whole()) q.columnwise = allocate(device, MemoryCategory::weights, columnwise.dtype, {cols, rows});
  const auto codes = [&](Copy copy, Tensor& whole, Tensor& shard) {
    if (p.copy(copy).place != Place::whole) return;
    allocate_whole(device, MemoryCategory::weights, p.copy(copy).dtype, p, whole, shard);
    shard = casts_shards() ? shard.reshape({p.shard_elements}) : Tensor{};
  };
  codes(Copy::rowwise, q.rowwise, p.rowwise_shard);
  codes(Copy::row_order, p.column_codes, p.columnwise_shard);
}

void ParameterStore::place(Parameter& p) const {
  comm::Group* const group = groups_ ? &groups_->shards_of(p.spec.expert) : nullptr;
  const std::int64_t parts = group ? group->size() : 1, rank = group ? group->rank() : 0;
  p.stride = parts == 1 ? p.elements() : round_up(ceil_div(p.elements(), parts), kShardMultiple);
  if (!p.held) {
    p.first_element = p.elements();
    return;
  }
  p.shards = parts > 1 ? group : nullptr;
  p.first_element = std::min(p.elements(), rank * p.stride);
  p.shard_elements = std::min(p.elements(), p.first_element + p.stride) - p.first_element;
}

void ParameterStore::materialise(Device& device, const Storage& storage, const Groups* groups, const Layout& layout) {
  require(buffers_.empty(), "parameters are materialised once");
  storage_ = storage;
  groups_ = groups;
  require((groups ? groups->tensor->size() : 1) == place_.size, "parameters of a tensor axis of ", place_.size, " ranks");
  require((groups ? groups->expert->size() : 1) == expert_place_.size, "parameters of experts on ", expert_place_.size, " ranks");
  for (Parameter& p : parameters_) {
    place(p);
    const Division division{.held = p.held, .shards = p.shard_count(), .dense_shards = shard_count(), .tensor = place_.size};
    for (std::size_t i = 0; i < kCopies; ++i) {
      p.copies[i] = residency(static_cast<Copy>(i), p.spec, storage, layout, division);
    }
    if (!p.held) {
      const bool master = storage.compute == DType::bf16 && storage.master_weights;
      p.value_shard = {nullptr, master ? DType::f32 : storage.compute, {0}};
      if (storage.training) {
        p.grad_shard = {nullptr, storage.grad, {0}};
        p.moment1 = p.moment2 = {nullptr, storage.moments, {0}};
      }
      continue;
    }
    const auto shard = [&](Copy copy, MemoryCategory category, Tensor& tensor) {
      if (p.copy(copy).place == Place::host) category = MemoryCategory::host;
      if (p.copy(copy).place != Place::absent) tensor = allocate_shard(device, category, p.copy(copy).dtype, p);
    };
    shard(Copy::master, MemoryCategory::master_weights, p.master);
    const Held& values = p.copy(Copy::values);
    if (values.place == Place::whole) {
      allocate_whole(device, MemoryCategory::weights, values.dtype, p, p.value, p.value_shard);
    } else if (values.place == Place::shard) {
      p.value_shard = allocate_shard(device, MemoryCategory::weights, values.dtype, p);
    }
    if (p.spec.quant) materialise_codes(device, p);
    if (p.spec.quant && casts_shards()) amax_grids(p, amax_count_);
    if (p.copy(Copy::gradient).place == Place::whole) {
      allocate_whole(device, MemoryCategory::gradients, p.copy(Copy::gradient).dtype, p, p.grad, p.grad_shard);
    } else {
      shard(Copy::gradient, MemoryCategory::gradients, p.grad_shard);
    }
    shard(Copy::moment1, MemoryCategory::moments, p.moment1);
    shard(Copy::moment2, MemoryCategory::moments, p.moment2);
  }
  if (shard_count() > 1 && layout.weights == Weights::resharded) materialise_gathered_shards(device);
  const std::int64_t amaxes = amax_count_[0].all() + amax_count_[1].all();
  if (amaxes > 0) amaxes_ = allocate(device, MemoryCategory::state, DType::f32, {amaxes});
}

void ParameterStore::initialise(Stream& stream, std::uint64_t seed) {
  for (const Parameter& p : parameters_) {
    const bool ones = p.spec.init == Init::ones;
    for (const TensorPiece& piece : p.pieces()) {
      kernels::fill_normal(stream, {.x = p.of_shard(p.primary(), piece),
                                    .mean = ones ? 1.0 : 0.0,
                                    .deviation = ones ? 0.0 : p.spec.init_std,
                                    .seed = seed,
                                    .subject = name_id(p.spec.name),
                                    .elements = piece.global_elements(p.cut.global())});
    }
  }
}

void ParameterStore::refresh_values(Stream& stream) {
  for (Parameter& p : parameters_) {
    if (p.master && p.value_shard) kernels::cast(stream, {.x = p.master, .y = p.value_shard});
  }
}

void ParameterStore::refresh_codes(Stream& stream, Arena& scratch, UnitRange units) {
  const auto is_cast = [&](const Parameter& p) { return p.held && p.spec.quant && units.contains(p.unit); };
  for (Parameter& p : parameters_) {
    if (is_cast(p) && p.scale_slot.amax) stream.zero(p.scale_slot.amax, sizeof(float));
  }
  if (casts_shards()) return cast_shards(stream, scratch, units);
  for (Parameter& p : parameters_) {
    if (!is_cast(p)) continue;
    kernels::quantize(
        stream, scratch,
        {.x = p.cast_source(), .spec = *p.spec.quant, .out = p.codes, .scale = p.scale_slot.scale, .amax = p.scale_slot.amax});
  }
}

// Returns the grids of a weight in amaxes_, and moves `at` past them. Every section lists its grids in the order of the
// parameters; `at` counts those before this weight. A group's two sections are neighbours, and so are the sections of both groups
// that the tensor axis shares. A weight whose scale comes from a history has none. The ranks of the tensor axis share the one
// tile of a whole tensor, the tiles of rows if columns are cut, and those of columns if rows are cut. Blocks belong to one rank.
ParameterStore::AmaxGrids ParameterStore::amax_grids(const Parameter& p, AmaxCounts& at) const {
  const QuantSpec& spec = *p.spec.quant;
  if (spec.source == ScaleSource::history) return {};
  const auto next = [&](Along along) {
    const Shape shape = kernels::amax_shape(spec.tile, along, p.spec.shape);
    const bool across = p.spec.cut.along == (along == Along::rows ? Cut::columns : Cut::rows);
    const bool shared = spec.tile == ScaleTile::tensor || (spec.tile == ScaleTile::row && across);
    const std::size_t group = group_of(p);
    std::int64_t& count = shared ? at[group].shared : at[group].own;
    const std::int64_t begin = amax_place(group, shared, count);
    const Tensor grid = amaxes_ ? amaxes_.slice_rows(begin, begin + shape.elements()).reshape(shape) : Tensor{};
    count += shape.elements();
    return grid;
  };
  AmaxGrids grids{.rows = next(Along::rows), .columns = {}};
  if (!kernels::is_square(spec.tile)) grids.columns = next(Along::columns);
  return grids;
}

std::int64_t ParameterStore::amax_place(std::size_t group, bool shared, std::int64_t count) const {
  if (group == 0) return count + (shared ? amax_count_[0].own : 0);
  return count + amax_count_[0].all() + (shared ? 0 : amax_count_[1].shared);
}

// Reduces, in each section, the stretch from the first grid of these units to the last one.
void ParameterStore::reduce_amaxes(Stream& stream, Arena& scratch, UnitRange units) {
  AmaxCounts at, end;
  std::optional<AmaxCounts> begin;
  for (const Parameter& p : parameters_) {
    if (!p.held || !p.spec.quant) continue;
    const AmaxCounts before = at;
    amax_grids(p, at);
    if (!units.contains(p.unit)) continue;
    if (!begin) begin = before;
    end = at;
  }
  if (!begin) return;
  const auto stretch = [&](std::size_t group, bool shared) {
    const auto place = [&](const AmaxCounts& counts) {
      return amax_place(group, shared, shared ? counts[group].shared : counts[group].own);
    };
    return amaxes_.slice_rows(place(*begin), place(end));
  };
  const auto reduce = [&](comm::Group& group, const std::array<Tensor, 2>& stretches) {
    const comm::Batch batch(group, stream);
    for (const Tensor& x : stretches) {
      if (x.elements() > 0) group.all_reduce(stream, scratch, {.x = x, .reduction = comm::Reduction::max});
    }
  };
  reduce(*groups_->shards, {stretch(0, false), stretch(0, true)});
  reduce(groups_->expert_shards(), {stretch(1, false), stretch(1, true)});
  reduce(*groups_->tensor, {stretch(0, true), stretch(1, true)});
}

// Each rank finds the amaxes of its shards, one exchange makes them those of the whole weights, and each casts its shards.
void ParameterStore::cast_shards(Stream& stream, Arena& scratch, UnitRange units) {
  const auto each = [&](auto&& visit) {
    AmaxCounts at;
    for (const Parameter& p : parameters_) {
      if (!p.held || !p.spec.quant) continue;
      const AmaxGrids grids = amax_grids(p, at);
      if (!units.contains(p.unit)) continue;
      const Tensor part = p.cast_source().reshape({p.shard_elements});
      visit(p, *p.spec.quant, Shard{.x = part, .first = p.first_element, .whole = p.spec.shape}, grids);
    }
  };
  if (amaxes_) {
    stream.zero(amaxes_.data, amaxes_.bytes());
    each([&](const Parameter&, const QuantSpec& spec, const Shard& shard, const AmaxGrids& amax) {
      kernels::shard_amax(stream, {.shard = shard, .tile = spec.tile, .rows = amax.rows, .columns = amax.columns});
    });
    reduce_amaxes(stream, scratch, units);
  }
  each([&](const Parameter& p, const QuantSpec& spec, const Shard& shard, const AmaxGrids& amax) {
    if (spec.source == ScaleSource::history) {
      kernels::cast_shard(stream, {.shard = shard,
                                   .spec = spec,
                                   .codes = p.rowwise_shard,
                                   .multipliers = {},
                                   .column_codes = {},
                                   .column_multipliers = {},
                                   .scale = p.scale_slot.scale,
                                   .scale_inv = p.codes.rowwise_scale_inv,
                                   .amax = p.scale_slot.amax});
      return;
    }
    const auto scales = [&](const Tensor& grid, Along along, const Tensor& scale_inv) {
      kernels::scales_from_amax(
          stream,
          {.amax = grid, .spec = spec, .along = along, .whole = p.spec.shape, .multipliers = grid, .scale_inv = scale_inv});
    };
    scales(amax.rows, Along::rows, p.codes.rowwise_scale_inv);
    if (amax.columns) scales(amax.columns, Along::columns, p.codes.columnwise_scale_inv);
    kernels::cast_shard(stream, {.shard = shard,
                                 .spec = spec,
                                 .codes = p.rowwise_shard,
                                 .multipliers = amax.rows,
                                 .column_codes = p.columnwise_shard,
                                 .column_multipliers = amax.columns,
                                 .scale_inv = {}});
  });
}

std::vector<StatePiece> ParameterStore::states(UnitRange units) const {
  std::vector<StatePiece> result;
  for (const Parameter& p : parameters_) {
    if (!units.contains(p.unit) || p.shard_elements == 0) continue;
    const auto flat = [&](const Tensor& x) { return x.reshape({p.shard_elements}); };
    result.push_back({.parameter = &p,
                      .first = p.first_element,
                      .elements = p.shard_elements,
                      .weight = flat(p.primary()),
                      .moment1 = flat(p.moment1),
                      .moment2 = flat(p.moment2)});
  }
  return result;
}

void ParameterStore::zero_gradients(Stream& stream) {
  for (Parameter& p : parameters_) {
    if (p.grad && !p.spec.grad_from_product) stream.zero(p.grad.data, p.grad.bytes());
  }
}

}  // namespace octet::parallel
