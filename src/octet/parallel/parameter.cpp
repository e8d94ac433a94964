#include "octet/parallel/parameter.h"

#include <algorithm>
#include <utility>

#include "octet/base/rng.h"
#include "octet/kernels/adamw/fp8_moments.h"
#include "octet/kernels/elementwise/elementwise.h"
#include "octet/kernels/fill/fill.h"
#include "octet/kernels/gemm/gemm.h"

namespace octet::parallel {
namespace {

// Whether ranks gather the whole from shards again and again.
bool is_gathered(const Parameter& p, Copy copy) { return p.copy(copy).place == Place::slot && copy != Copy::gradient; }

// Whether GEMMs read the rowwise codes in both directions.
bool serves_both(const Device& device, const Parameter& p) {
  return p.spec.quant && p.spec.quant->tile == ScaleTile::tensor && kernels::reads_codes_k_first(device.target());
}

}  // namespace

int ParameterStore::begin_unit(int stage) {
  stage_of_unit_.push_back(stage);
  return unit_ = unit_count() - 1;
}

Parameter& ParameterStore::add(ParameterSpec spec) {
  if (stage_of_unit_.empty()) begin_unit();
  parameters_.emplace_back();
  Parameter& p = parameters_.back();
  if (spec.expert) {
    require(spec.expert.index >= 0 && spec.expert.index < spec.expert.count && spec.expert.count % expert_place_.size == 0,
            spec.name, ": expert ", spec.expert.index, " of ", spec.expert.count, " among ", expert_place_.size, " ranks");
  }
  p.stage = stage_of_unit_[static_cast<std::size_t>(unit_)];
  p.held = p.stage == stage_ && expert_place_.holds(spec.expert);
  p.cut = TensorCut(spec.shape, spec.cut, place_);
  p.spec = std::move(spec);
  p.spec.frozen = frozen_ || p.spec.tracked;
  p.spec.saved = !frozen_;
  p.spec.shape = p.cut.local();
  p.unit = unit_;
  return p;
}

CopyTensors tensors_of(Parameter& p, Copy copy) {
  const std::array<CopyTensors, kCopies> tensors = {{{nullptr, &p.master},
                                                     {&p.value, &p.value_shard},
                                                     {&p.codes.rowwise, &p.rowwise_shard},
                                                     {&p.codes.columnwise, nullptr},
                                                     {&p.column_codes, &p.columnwise_shard},
                                                     {&p.grad, &p.grad_shard},
                                                     {nullptr, &p.moment1},
                                                     {nullptr, &p.moment2}}};
  return tensors[static_cast<std::size_t>(copy)];
}

Tensor ParameterStore::allocate(Device& device, MemoryCategory category, DType dtype, Shape shape) {
  buffers_.push_back(device.allocate(bytes_of(dtype, shape), category));
  return view(buffers_.back(), dtype, shape);
}

// Allocates a copy, unless its shard is gathered again and again.
void ParameterStore::allocate(Device& device, Parameter& p, Copy copy) {
  const auto [place, dtype] = p.copy(copy);
  const auto [whole, shard] = tensors_of(p, copy);
  if (place == Place::absent || is_gathered(p, copy)) return;
  const MemoryCategory category = category_of(copy, place);
  const bool one = p.shard_count() == 1;
  if (place != Place::whole || !whole) {
    *shard = one ? allocate(device, category, dtype, p.spec.shape)
                 : allocate(device, category, dtype, {p.stride}).slice_rows(0, p.shard_elements);
  } else if (!shard) {
    *whole = allocate(device, category, dtype, {p.spec.shape[1], p.spec.shape[0]});
  } else if (one) {
    *whole = *shard = allocate(device, category, dtype, p.spec.shape);
  } else {
    const Tensor padded = allocate(device, category, dtype, {p.shard_count() * p.stride});
    *whole = {padded.data, dtype, p.spec.shape};
    const std::int64_t first = p.shards->rank() * p.stride;
    *shard = padded.slice_rows(first, first + p.shard_elements);
  }
}

void ParameterStore::allocate_scales(Device& device, Parameter& p) {
  const std::int64_t rows = p.spec.shape[0], cols = p.spec.shape[1];
  Quantized& q = p.codes;
  q.format = p.spec.quant->format;
  q.tile = p.spec.quant->tile;
  const auto scales = [&](std::int64_t of_rows, std::int64_t of_cols) {
    return allocate(device, MemoryCategory::weights, scale_dtype(q.tile), scale_shape(q.tile, of_rows, of_cols));
  };
  q.rowwise_scale_inv = scales(rows, cols);
  if (!serves_both(device, p) && !p.copy(Copy::columnwise).has_whole() && !p.copy(Copy::row_order).has_whole()) return;
  q.columnwise_scale_inv = q.tile == ScaleTile::tensor ? q.rowwise_scale_inv : scales(cols, rows);
}

// Allocates the scales of moments in FP8.
void ParameterStore::allocate_moment_scales(Device& device, Parameter& p) {
  const Place place = p.copy(Copy::moment1).place;
  if (storage_.moments != DType::f8_e4m3 || place == Place::absent) return;
  static_assert(kShardMultiple % kernels::kMomentGroup == 0);
  for (Tensor* scales : {&p.moment1_scale, &p.moment2_scale}) {
    *scales = allocate(device, category_of(Copy::moment1, place), DType::f32, {kernels::moment_scales(p.stride)})
                  .slice_rows(0, kernels::moment_scales(p.shard_elements));
  }
}

// Gives the shards that are gathered again and again over a group their places, in memory that may be there only later. Returns
// the bytes that they take.
std::size_t ParameterStore::place_gathered_shards(comm::Group* group) {
  std::size_t used = 0;
  for (Parameter& p : parameters_) {
    for (const Copy copy : kAllCopies) {
      if (p.shards != group || !is_gathered(p, copy)) continue;
      const DType dtype = p.copy(copy).dtype;
      *tensors_of(p, copy).shard = {behind(gathered_[group].data(), used), dtype, {p.shard_elements}};
      used += round_up(bytes_of(dtype, {p.stride}), Device::kAlignment);
    }
  }
  return used;
}

void ParameterStore::place(Parameter& p) const {
  if (storage_.moments == DType::f8_e4m3 && storage_.training && !p.spec.frozen) {
    const auto cut = cut_in_runs(p.cut.global(), p.spec.cut, place_, kernels::kMomentGroup);
    demand(cut.has_value(), ExitCode::config, "optimizer.state_dtype = \"fp8\" with a tensor axis of ", place_.size,
           " ranks: of each row of ", p.spec.name, " ", p.cut.global(), " every rank must hold whole groups of ",
           kernels::kMomentGroup, " elements with one scale; use \"bf16\", or a smaller parallel.tensor");
    p.scale_cut = *cut;
  }
  comm::Group* const ranks = groups_ ? &groups_->shards_of(p.spec.expert) : nullptr;
  comm::Group* const group = p.spec.tracked ? nullptr : ranks;
  p.replica = p.spec.tracked && ranks && ranks->rank() > 0;
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
    if (serves_both(device, p)) p.spec.keeps_transpose = false;
    const Division division{.held = p.held, .shards = p.shard_count(), .dense_shards = shard_count(), .tensor = place_.size};
    for (const Copy copy : kAllCopies) {
      p.copies[static_cast<std::size_t>(copy)] = residency(copy, p.spec, storage, layout, division);
    }
    if (!p.held) {
      p.value_shard = {nullptr, storage.has_masters() || p.spec.tracked ? DType::f32 : storage.compute, {0}};
      if (storage.training) {
        p.grad_shard = {nullptr, storage.grad, {0}};
        p.moment1 = p.moment2 = {nullptr, storage.moments, {0}};
        p.moment1_scale = p.moment2_scale = {nullptr, DType::f32, {0}};
      }
      continue;
    }
    if (p.spec.quant) allocate_scales(device, p);
    for (const Copy copy : kAllCopies) allocate(device, p, copy);
    allocate_moment_scales(device, p);
  }
  for (comm::Group* group : groups ? groups->all_shards() : std::vector<comm::Group*>{}) {
    const std::size_t bytes = place_gathered_shards(group);
    if (bytes > 0) gathered_[group] = device.allocate(bytes, MemoryCategory::weights);
    place_gathered_shards(group);
  }
  cast_.emplace(device, parameters_, groups);
  std::vector<Tensor> zeroed;
  for (const Parameter& p : parameters_) {
    if (p.copy(Copy::gradient).place == Place::whole && !p.spec.grad_from_product) zeroed.push_back(p.grad);
  }
  zeroed_ = {device, std::move(zeroed)};
}

void ParameterStore::initialise(Stream& stream, std::uint64_t seed) {
  for (const Parameter& p : parameters_) initialise(stream, p, seed);
}

void ParameterStore::initialise(Stream& stream, const Parameter& p, std::uint64_t seed) {
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

void ParameterStore::fill(Stream& stream, Arena& scratch, Parameter& p, const std::function<void()>& write) {
  const ArenaScope temporaries(scratch);
  const bool lacks_values = p.held && p.spec.frozen && p.copy(Copy::values).place == Place::absent;
  if (lacks_values) {
    const Shape shape = p.shard_count() == 1 ? p.spec.shape : Shape{p.shard_elements};
    p.value_shard = octet::allocate(scratch, storage_.compute, shape);
  }
  write();
  if (p.held && p.spec.frozen && p.spec.quant) cast_->run(stream, scratch, p);
  if (lacks_values) p.value_shard = {};
}

void ParameterStore::refresh(Stream& stream, Arena& scratch) {
  refresh_values(stream);
  for (const Parameter& p : parameters_) {
    if (p.held && p.spec.quant && !p.spec.frozen) cast_->run(stream, scratch, p);
  }
}

void ParameterStore::refresh_values(Stream& stream) {
  for (Parameter& p : parameters_) {
    if (p.master && p.value_shard) kernels::cast(stream, {.x = p.master, .y = p.value_shard});
  }
}

std::vector<StatePiece> ParameterStore::states(UnitRange units) const {
  std::vector<StatePiece> result;
  for (const Parameter& p : parameters_) {
    if (!units.contains(p.unit) || p.shard_elements == 0 || p.spec.frozen) continue;
    result.push_back({.parameter = &p,
                      .first = p.first_element,
                      .elements = p.shard_elements,
                      .weight = p.primary().flat(),
                      .moment1 = p.moment1.flat(),
                      .moment2 = p.moment2.flat(),
                      .moment1_scale = p.moment1_scale,
                      .moment2_scale = p.moment2_scale});
  }
  return result;
}

}  // namespace octet::parallel
