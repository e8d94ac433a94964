#include "octet/parallel/units.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "octet/base/math.h"
#include "octet/base/require.h"
#include "octet/kernels/elementwise/elementwise.h"
#include "octet/kernels/quantize/quantize.h"
#include "octet/parallel/names.h"

namespace octet::parallel {
namespace {

// Lays out the pieces of a unit in a slot.
class Pieces {
 public:
  explicit Pieces(void* memory) : memory_(memory) {}
  Tensor next(DType dtype, std::int64_t elements) {
    const Tensor piece(behind(memory_, bytes_), dtype, {elements});
    bytes_ += round_up(piece.bytes(), Device::kAlignment);
    return piece;
  }
  std::size_t bytes() const { return bytes_; }

 private:
  void* memory_;
  std::size_t bytes_ = 0;
};

// A shard, or a whole, with its padding.
Tensor padded(const Tensor& x, std::int64_t elements) { return {x.data, x.dtype, {elements}}; }

// Calls exchange(item, group) for each of `items`, which are ordered by group, in one batch for each group.
template <class Item, class GroupOf, class Exchange>
void in_batches(Stream& stream, const std::vector<Item>& items, const GroupOf& group_of, const Exchange& exchange) {
  for (auto at = items.begin(); at != items.end();) {
    comm::Group& group = *group_of(*at);
    const comm::Batch batch(group, stream);
    for (; at != items.end() && group_of(*at) == &group; ++at) exchange(*at, group);
  }
}

}  // namespace

Units::Units(Stream& compute, ParameterStore& store, const Groups& groups, const Layout& layout, StepShape& shape)
    : compute_(compute), store_(store), groups_(groups), layout_(layout), shape_(shape), streams_(compute), executor_(streams_) {
  shape.sharded = store.shard_count() > 1;
  shape.resharded = shape.sharded && layout.weights == Weights::resharded;
  shape.reduced = shape.sharded || groups.replicas->size() > 1;
  shape.sharded_gradients = shape.sharded && layout.gradients == Gradients::sharded;
  shape.lanes = layout.lanes;
  if (shape.reduced) streams_.make(StreamId::params);
  streams_.set(StreamId::context, params_stream());
  if (groups.context->size() > 1 && compute.device().concurrent()) streams_.make(StreamId::context);
  if (groups.tensor->size() > 1 && compute.device().concurrent()) streams_.make(StreamId::tensor);
  if (layout.lanes > 1) streams_.make(StreamId::experts);
  units_.resize(static_cast<std::size_t>(store.unit_count()));
  for (Parameter& p : store.parameters()) {
    if (p.held) unit(p.unit).all.push_back(&p);
  }
  const auto is_trained = [](const Parameter* p) { return !p->spec.frozen; };
  for (Unit& unit : units_) {
    for (comm::Group* group : groups.all_shards()) {
      std::copy_if(unit.all.begin(), unit.all.end(), std::back_inserter(unit.cut),
                   [&](const Parameter* p) { return p->shard_count() > 1 && p->shards == group; });
    }
    std::copy_if(unit.all.begin(), unit.all.end(), std::back_inserter(unit.trained), is_trained);
    std::copy_if(unit.cut.begin(), unit.cut.end(), std::back_inserter(unit.cut_and_trained), is_trained);
    shape.two_copies.push_back(
        std::any_of(unit.all.begin(), unit.all.end(), [](const Parameter* p) { return p->copy(Copy::row_order).has_whole(); }));
  }
  if (store.storage().offloads()) {
    offload_.emplace(compute.device(), store);
    offload_->describe(shape);
    streams_.make(StreamId::fetch);
    streams_.make(StreamId::offload);
  }
  shape.updates = update_ranges(shape);
  slots_ = Slots(shape);
  constexpr Copy kWeights[] = {Copy::values, Copy::rowwise, Copy::row_order}, kGradients[] = {Copy::gradient};
  if (shape.resharded) weight_slots_ = make_slots(&StepShape::weight_slot, kWeights, MemoryCategory::weights);
  if (!store.storage().training) return;
  if (shape.sharded_gradients) {
    gradient_slots_ = make_slots(&StepShape::gradient_slot, kGradients, MemoryCategory::gradients);
    for (Unit& unit : units_) {
      std::vector<Tensor> zeroed;
      for (const Parameter* p : unit.cut_and_trained) {
        if (!p->spec.grad_from_product) zeroed.push_back(p->grad);
      }
      unit.zeroed = {compute.device(), std::move(zeroed)};
    }
  }
  const std::size_t bytes = place_crossings(nullptr);
  if (bytes > 0) cast_ = compute.device().allocate(bytes, MemoryCategory::gradients);
  place_crossings(cast_.data());
}

// The units are placed twice, because the size of a slot, that of its largest unit, is known afterwards.
std::vector<Buffer> Units::make_slots(int (StepShape::*slot)(int) const, std::span<const Copy> copies, MemoryCategory category) {
  std::vector<std::size_t> bytes(kUnitSlots);
  std::vector<Buffer> slots;
  const auto slot_of = [&](std::size_t unit) { return static_cast<std::size_t>((shape_.*slot)(static_cast<int>(unit))); };
  for (std::size_t i = 0; i < units_.size(); ++i) bytes[slot_of(i)] = std::max(bytes[slot_of(i)], place(i, copies, nullptr));
  for (const std::size_t size : bytes) slots.push_back(compute_.device().allocate(size, category));
  for (std::size_t i = 0; i < units_.size(); ++i) place(i, copies, slots[slot_of(i)].data());
  return slots;
}

std::size_t Units::place(std::size_t unit, std::span<const Copy> copies, void* slot) {
  Pieces pieces(slot);
  for (Parameter* p : units_[unit].cut) {
    for (const Copy copy : copies) {
      if (p->copy(copy).place != Place::slot) continue;
      const DType dtype = copy == Copy::gradient ? layout_.reduce : p->copy(copy).dtype;
      *tensors_of(*p, copy).whole = {pieces.next(dtype, p->shard_count() * p->stride).data, dtype, p->spec.shape};
    }
  }
  return pieces.bytes();
}

// The memory for casts of gradients that are kept in another dtype than layout.reduce: first whole gradients before they are
// reduced over shards, then shards before they are reduced over replicas. Returns the largest number of bytes that a unit's
// casts take.
std::size_t Units::place_crossings(void* casts) {
  std::size_t most = 0;
  for (Unit& unit : units_) {
    Pieces wholes(casts), shards(casts);
    const auto crossing = [&](Pieces& pieces, const Tensor& x) {
      return x.dtype == layout_.reduce ? x : pieces.next(layout_.reduce, x.elements());
    };
    unit.to_shards.clear();
    for (const Parameter* p : unit.cut_and_trained) {
      unit.to_shards.push_back({p, crossing(wholes, padded(p->grad, p->shard_count() * p->stride))});
    }
    unit.to_replicas.clear();
    for (const Parameter* p : unit.trained) {
      if (groups_.replicas->size() == 1) continue;
      unit.to_replicas.push_back({p, crossing(shards, padded(p->grad_shard, p->stride)).slice_rows(0, p->shard_elements)});
    }
    most = std::max({most, wholes.bytes(), shards.bytes()});
  }
  return most;
}

Units::SharedBytes Units::shared_bytes() const {
  SharedBytes result{.gradients = cast_.bytes(), .states = offload_ ? offload_->slot_bytes() : 0};
  for (const Buffer& slot : weight_slots_) result.weights += slot.bytes();
  for (const Buffer& slot : gradient_slots_) result.gradients += slot.bytes();
  return result;
}

void Units::exchange(const std::function<void(Stream&)>& exchange) {
  if (&params_stream() != &compute_) params_stream().wait(*compute_.record());
  exchange(params_stream());
  wait_for_params();
}

void Units::wait_for_params() {
  if (&params_stream() != &compute_) compute_.wait_for_ranks(*params_stream().record());
}

std::vector<Stream*> Units::waiting_streams() const {
  std::vector<Stream*> streams = {&compute_};
  if (compute_.device().concurrent()) return streams;
  for (const StreamId id : {StreamId::params, StreamId::experts}) {
    if (&streams_[id] != &compute_) streams.push_back(&streams_[id]);
  }
  return streams;
}

void Units::exchange_of_stages(const std::function<void()>& exchange) {
  if (groups_.stages->size() == 1) return;
  wait_for_params();  // waits for earlier exchanges first, so that the next wait counts only other stages
  const StageWaits of_compute(compute_), of_params(params_stream());
  exchange();
  wait_for_params();
}

void Units::start_waits() {
  for (Stream* stream : waiting_streams()) stream->start_waits();
}

Waits Units::take_waits() {
  Waits sum;
  for (Stream* stream : waiting_streams()) {
    const Waits waits = stream->take_waits();
    sum.all += waits.all;
    sum.stages += waits.stages;
  }
  return sum;
}

void Units::begin_step() {
  slots_.reduced.clear();
  store_.zero_gradients(compute_);
}

// If several ranks of the tensor axis hold the same piece, each knows only the gradient from its own tokens or heads. If only
// some ranks of the axis hold it, every set of holders has its own row in the tensor that is summed over all ranks. Runs on the
// computation's stream, like all work of this group in a micro-batch.
void Units::sum_over_holders(Arena& scratch, UnitRange units) {
  comm::Group& tensor = *groups_.tensor;
  if (tensor.size() == 1) return;
  struct Sum {
    Tensor mine, summed, slot;
  };
  std::vector<Sum> sums;
  const ArenaScope temporaries(scratch);
  for (const Parameter& p : store_.parameters()) {
    if (!units.contains(p.unit) || p.spec.frozen) continue;
    for (const TensorPiece& piece : p.pieces()) {
      if (piece.holders == 1 || piece.elements() == 0) continue;
      const Tensor mine = p.of_shard(p.grad_shard, piece);
      const std::int64_t sets = tensor.size() / piece.holders, set = tensor.rank() / piece.holders, count = piece.elements();
      if (sets == 1) {
        sums.push_back({mine, mine, mine});
        continue;
      }
      const Tensor summed = allocate(scratch, mine.dtype, {sets * count}),
                   slot = summed.slice_rows(set * count, (set + 1) * count);
      compute_.zero(summed.data, summed.bytes());
      compute_.copy(slot.data, mine.data, mine.bytes());
      sums.push_back({mine, summed, slot});
    }
  }
  {
    const comm::Batch batch(tensor, compute_);
    for (const Sum& sum : sums) tensor.all_reduce(compute_, scratch, {.x = sum.summed});
  }
  for (const Sum& sum : sums) {
    if (sum.slot.data != sum.mine.data) compute_.copy(sum.mine.data, sum.slot.data, sum.mine.bytes());
  }
  if (sums.empty() || groups_.replicas->size() == 1) return;
  // NCCL may have added up in another order in each replica. All of them take the sums of the first, so that their weights stay
  // equal to the bit.
  exchange([&](Stream& params) {
    const comm::Batch batch(*groups_.replicas, params);
    for (const Sum& sum : sums) groups_.replicas->broadcast(params, {.x = sum.mine});
  });
}

void Units::refresh(Arena& scratch) {
  Stream& stream = shape_.sharded ? params_stream() : compute_;
  if (&stream != &compute_) stream.wait(*compute_.record());
  store_.refresh_values(stream);
  for (Unit& unit : units_) unit.has_rowwise = unit.has_columnwise = false;
  ScheduleBuilder list(shape_, slots_, false);
  list.cast(store_.all_units());
  run(scratch, list.finish());
  if (offload_) streams_[StreamId::fetch].wait(*compute_.record());  // masters and moments may have been loaded just now
}

void Units::wait_for_states(Stream& stream) {
  if (offload_) stream.wait(*streams_[StreamId::offload].record());
}

void Units::prepare_casts() {
  const UnitRange all = store_.all_units();
  for (const UnitRange units : shape_.updates) store_.prepare_codes(compute_.device(), units);
  if (shape_.updates.front() != all) store_.prepare_codes(compute_.device(), all);  // for refresh()
}

UpdateWork Units::update_work() const {
  UpdateWork work{.units = shape_.updates};
  // With offload there are no pieces if this rank's shards of all trained parameters are empty.
  for (const UnitRange units : work.units) {
    if (!offload_ || shape_.pieces.empty()) work.pieces.push_back(store_.states(units));
  }
  for (std::size_t piece = 0; piece < shape_.pieces.size(); ++piece) {
    work.pieces.push_back(offload_->piece(static_cast<int>(piece)));
  }
  return work;
}

// With shards on several ranks, casts run beside the computation, and a rank may fetch the codes when all ranks have theirs.
void Units::cast(Arena& scratch, UnitRange units) {
  store_.refresh_codes(shape_.sharded ? params_stream() : compute_, scratch, units);
  if (!shape_.sharded) return;
  for (comm::Group* group : groups_.all_shards()) group->fence(params_stream());
}

void Units::run(Arena& scratch, const Task& task) {
  switch (task.kind) {
    case Kind::gather:
      return gather(scratch, task);
    case Kind::open:
      if (shape_.sharded_gradients && writes_gradients(task.use)) kernels::zero(compute_, {.x = unit(task.index).zeroed});
      return;
    case Kind::close:
      return;  // others only wait for the end of its use
    case Kind::reduce:
      return reduce(scratch, task);
    case Kind::cast:
      return cast(scratch, task.units);
    case Kind::fetch:
    case Kind::offload:
      return offload_->run(streams_[task.stream], task);
    default:
      require(false, "a task that is not one of units");
  }
}

void Units::run(Arena& scratch, const std::vector<Task>& tasks) {
  executor_.run(tasks, [&](const Task& task) { run(scratch, task); });
}

void Units::gather(Arena& scratch, const Task& task) {
  const TraceRange range(params_stream(), "gather " + name_of_unit(shape_, task.index));
  const auto group_of = [](const Parameter* p) { return p->shards; };
  Unit& of = unit(task.index);
  const bool all = shape_.resharded || (task.rowwise && !of.has_rowwise) || (task.columnwise && !of.has_columnwise);
  of.has_rowwise |= task.rowwise;
  of.has_columnwise |= task.columnwise;
  in_batches(params_stream(), all ? of.cut : of.cut_and_trained, group_of, [&](const Parameter* p, comm::Group& group) {
    const auto all_gather = [&](const Tensor& shard, const Tensor& whole) {
      const Tensor own = padded(shard, p->stride), all = padded(whole, p->shard_count() * p->stride);
      if (!group.reaches(own)) return group.all_gather(params_stream(), scratch, {.x = own, .y = all});
      for (const int rank : group.ring()) {
        const Tensor part = all.slice_rows(rank * p->stride, (rank + 1) * p->stride);
        group.fetch(params_stream(), {.x = own, .y = part, .from = rank});
      }
    };
    const bool square = !p->copy(Copy::row_order).has_whole();
    if (task.values && p->copy(Copy::values).has_whole()) all_gather(p->value_shard, p->value);
    if (p->spec.quant && (square ? task.values : task.rowwise)) all_gather(p->rowwise_shard, p->codes.rowwise);
    if (p->spec.quant && !square && task.columnwise) all_gather(p->columnwise_shard, p->column_codes);
  });
  for (const Parameter* p : all ? of.all : of.trained) {
    Quantized q = p->codes;
    if (!q.columnwise || !(p->column_codes ? task.columnwise : task.values)) continue;
    if (p->column_codes) q.rowwise = p->column_codes;
    kernels::transpose_codes(params_stream(), q);
  }
}

void Units::reduce(Arena& scratch, const Task& task) {
  const TraceRange range(params_stream(), "reduce " + name_of_unit(shape_, task.index));
  if (shape_.sharded) reduce_over_shards(scratch, unit(task.index), task.first);
  if (task.last) reduce_over_replicas(scratch, unit(task.index));
}

// Sharded gradients are written in the dtype in which ranks exchange them, whole ones are cast to it. A shard that is kept in
// this dtype is reduced where it stays, if it is the first of the step.
void Units::reduce_over_shards(Arena& scratch, const Unit& unit, bool fresh) {
  require(fresh || layout_.accumulates || compute_.kind() == DeviceKind::meta,
          "a second micro-batch of a layout of steps of one");
  const bool sharded = shape_.sharded_gradients;
  const auto part_of = [&](const Crossing& c) {
    const std::int64_t stride = c.p->stride, first = c.p->shards->rank() * stride;
    const bool in_place = sharded && fresh && c.p->grad_shard.dtype == layout_.reduce;
    return in_place ? padded(c.p->grad_shard, stride) : c.x.slice_rows(first, first + stride);
  };
  for (const Crossing& c : unit.to_shards) {
    if (c.x.dtype != c.p->grad.dtype)
      kernels::cast(params_stream(), {.x = c.p->grad.flat(), .y = c.x.slice_rows(0, c.p->elements())});
  }
  const auto group_of = [](const Crossing& c) { return c.p->shards; };
  in_batches(params_stream(), unit.to_shards, group_of, [&](const Crossing& c, comm::Group& group) {
    group.reduce_scatter(params_stream(), scratch, {.x = c.x, .y = part_of(c)});
  });
  for (const Crossing& c : unit.to_shards) {
    const Tensor part = part_of(c).slice_rows(0, c.p->shard_elements);
    if (part.data == c.p->grad_shard.data) continue;
    if (fresh || !sharded) {
      kernels::cast(params_stream(), {.x = part, .y = c.p->grad_shard});
    } else {
      kernels::add(params_stream(), {.x = part, .y = c.p->grad_shard});
    }
  }
}

void Units::reduce_over_replicas(Arena& scratch, const Unit& unit) {
  const auto casts = [](const Crossing& c) { return c.x.dtype != c.p->grad_shard.dtype; };
  for (const Crossing& c : unit.to_replicas) {
    if (casts(c)) kernels::cast(params_stream(), {.x = c.p->grad_shard.flat(), .y = c.x});
  }
  const auto group_of = [this](const Crossing&) { return groups_.replicas.get(); };
  in_batches(params_stream(), unit.to_replicas, group_of,
             [&](const Crossing& c, comm::Group& group) { group.all_reduce(params_stream(), scratch, {.x = c.x}); });
  for (const Crossing& c : unit.to_replicas) {
    if (casts(c)) kernels::cast(params_stream(), {.x = c.x, .y = c.p->grad_shard.flat()});
  }
}

}  // namespace octet::parallel
