#include "octet/parallel/parameter.h"

#include <algorithm>
#include <utility>

#include "octet/base/math.h"
#include "octet/base/rng.h"
#include "octet/kernels/elementwise/elementwise.h"
#include "octet/kernels/fill/fill.h"

namespace octet::parallel {

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
    shard = shard.reshape({p.shard_elements});
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
    if (p.copy(Copy::gradient).place == Place::whole) {
      allocate_whole(device, MemoryCategory::gradients, p.copy(Copy::gradient).dtype, p, p.grad, p.grad_shard);
    } else {
      shard(Copy::gradient, MemoryCategory::gradients, p.grad_shard);
    }
    shard(Copy::moment1, MemoryCategory::moments, p.moment1);
    shard(Copy::moment2, MemoryCategory::moments, p.moment2);
  }
  if (shard_count() > 1 && layout.weights == Weights::resharded) materialise_gathered_shards(device);
  cast_.emplace(device, parameters_, groups);
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
    const bool whole = p.copy(Copy::gradient).place == Place::whole;
    if (whole && !p.spec.grad_from_product) stream.zero(p.grad.data, p.grad.bytes());
  }
}

}  // namespace octet::parallel
