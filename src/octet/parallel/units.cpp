#include "octet/parallel/units.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

#include "octet/base/math.h"
#include "octet/base/require.h"
#include "octet/kernels/elementwise/elementwise.h"
#include "octet/kernels/quantize/quantize.h"

namespace octet::parallel {
namespace {

constexpr std::size_t kSlots = 3;

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

// A parameter's whole weights with their padding.
struct Whole {
  Tensor value, codes, column_codes;
};
Whole whole_in(Pieces& pieces, const Parameter& p, DType compute) {
  Whole whole;
  if (p.copy(Copy::values).has_whole()) whole.value = pieces.next(compute, p.shard_count() * p.stride);
  if (p.spec.quant) {
    whole.codes = pieces.next(dtype_of(p.codes.format), p.shard_count() * p.stride);
    if (p.copy(Copy::row_order).has_whole()) whole.column_codes = pieces.next(whole.codes.dtype, p.shard_count() * p.stride);
  }
  return whole;
}

// A shard, or a whole, with its padding.
Tensor padded(const Tensor& x, std::int64_t elements) { return {x.data, x.dtype, {elements}}; }
Tensor flat(const Tensor& x) { return x.reshape({x.elements()}); }

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

// Units that are used one after the other take turns in two slots, those at the edges use a third.
template <class Bytes>
Units::SlotMemory Units::make_slots(Keep keep, const std::vector<int>& edges, MemoryCategory category, Bytes bytes_of_unit) {
  SlotMemory result;
  const std::size_t count = units_.size();
  if (keep == Keep::all) {
    result.slots.resize(count);
    for (std::size_t i = 0; i < count; ++i) result.index.push_back(static_cast<int>(i));
    return result;
  }
  std::size_t bytes[kSlots] = {};
  int turn = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const bool edge = std::find(edges.begin(), edges.end(), static_cast<int>(i)) != edges.end();
    result.index.push_back(edge ? 2 : turn++ % 2);
    std::size_t& most = bytes[result.index.back()];
    most = std::max(most, bytes_of_unit(i));
  }
  for (const std::size_t size : bytes) result.slots.push_back(compute_.device().allocate(size, category));
  return result;
}

Units::Units(Stream& compute, ParameterStore& store, const Groups& groups, const Layout& layout, const std::vector<int>& edges)
    : compute_(compute), store_(store), groups_(groups), layout_(layout), params_stream_(&compute), executor_(compute) {
  if (groups.shards->size() > 1 || groups.replicas->size() > 1) {
    own_params_stream_ = compute.device().make_stream();
    params_stream_ = own_params_stream_.get();
    if (groups.context->size() > 1 && compute.kind() != DeviceKind::cpu) own_context_stream_ = compute.device().make_stream();
  }
  if (layout.lanes > 1) expert_stream_ = compute.device().make_stream();
  units_.resize(static_cast<std::size_t>(store.unit_count()));
  cut_.resize(units_.size());
  for (Parameter& p : store.parameters()) {
    if (p.held) units_[static_cast<std::size_t>(p.unit)].push_back(&p);
  }
  for (comm::Group* group : groups.all_shards()) {
    for (std::size_t i = 0; i < units_.size(); ++i) {
      std::copy_if(units_[i].begin(), units_[i].end(), std::back_inserter(cut_[i]),
                   [&](const Parameter* p) { return p->shard_count() > 1 && p->shards == group; });
    }
  }
  executor_.add(StreamId::params, *params_stream_);
  if (expert_stream_) executor_.add(StreamId::experts, *expert_stream_);
  const Storage& storage = store.storage();
  if (storage.training && storage.offload_slot > 0) {
    offload_.emplace(compute.device(), store);
    fetch_stream_ = compute.device().make_stream();
    offload_stream_ = compute.device().make_stream();
    executor_.add(StreamId::fetch, *fetch_stream_);
    executor_.add(StreamId::offload, *offload_stream_);
  }
  weights_ = make_slots(layout.weights == Weights::kept || shard_count() == 1 ? Keep::all : Keep::in_use, edges,
                        MemoryCategory::weights, [&](std::size_t i) {
                          Pieces pieces(nullptr);
                          for (const Parameter* p : cut_[i]) whole_in(pieces, *p, storage.compute);
                          return pieces.bytes();
                        });
  first_ = first_units();
  if (!storage.training) {
    gradients_ = make_slots(Keep::all, edges, MemoryCategory::gradients, [](std::size_t) { return std::size_t{0}; });
    slots_ = Slots(shape());
    return;
  }
  const bool sharded = gradients() == Gradients::sharded;
  const auto bytes_of_wholes = [&](std::size_t i) {
    Pieces pieces(nullptr);
    for (const Parameter* p : cut_[i]) pieces.next(layout_.reduce, p->shard_count() * p->stride);
    return pieces.bytes();
  };
  const auto bytes_of_shards = [&](std::size_t i) {
    Pieces pieces(nullptr);
    for (const Parameter* p : units_[i]) {
      if (p->grad_shard.dtype != layout_.reduce) pieces.next(layout_.reduce, p->stride);
    }
    return pieces.bytes();
  };
  gradients_ = make_slots(sharded ? Keep::in_use : Keep::all, edges, MemoryCategory::gradients, bytes_of_wholes);
  slots_ = Slots(shape());
  if (storage.grad == layout.reduce) return;
  std::size_t most = 0;
  for (std::size_t i = 0; i < units_.size(); ++i) {
    if (!sharded) most = std::max(most, bytes_of_wholes(i));
    if (groups.replicas->size() > 1) most = std::max(most, bytes_of_shards(i));
  }
  if (most > 0) cast_ = compute.device().allocate(most, MemoryCategory::gradients);
}

std::size_t Units::SlotMemory::bytes() const {
  return std::accumulate(slots.begin(), slots.end(), std::size_t{0},
                         [](std::size_t sum, const Buffer& slot) { return sum + slot.bytes(); });
}

Units::SharedBytes Units::shared_bytes() const {
  return {.weights = weights_.bytes(),
          .gradients = gradients_.bytes() + cast_.bytes(),
          .states = offload_ ? offload_->slot_bytes() : 0};
}

void Units::exchange(const std::function<void(Stream&)>& exchange) {
  if (params_stream_ != &compute_) params_stream_->wait(*compute_.record());
  exchange(*params_stream_);
  wait_for_params();
}

void Units::wait_for_params() {
  if (params_stream_ != &compute_) compute_.wait_for_ranks(*params_stream_->record());
}

std::vector<Stream*> Units::waiting_streams() const {
  std::vector<Stream*> streams = {&compute_};
  if (compute_.kind() != DeviceKind::cpu) return streams;
  if (own_params_stream_) streams.push_back(own_params_stream_.get());
  if (expert_stream_) streams.push_back(expert_stream_.get());
  return streams;
}

void Units::exchange_of_stages(const std::function<void()>& exchange) {
  if (groups_.stages->size() == 1) return;
  wait_for_params();  // what was enqueued before is a wait of its own
  const StageWaits of_compute(compute_), of_params(*params_stream_);
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

void Units::begin_step(std::int64_t micro_batches, bool reduces) {
  require(micro_batches >= 1, "a step of ", micro_batches, " micro-batches");
  reduces_ = reduces;
  micro_batches_ = micro_batches;
  seen_ = 0;
  slots_.reduced.clear();
  store_.zero_gradients(compute_);
}

// The first units that can be gathered beside each other, as many as there are slots: the embedding and two blocks. Their forward
// pass hides what is cast and gathered next. On a later pipeline stage they are its first blocks. One rank hides nothing.
UnitRange Units::first_units() const {
  if (params_stream_ == &compute_) return store_.all_units();
  const auto held = std::find_if(units_.begin(), units_.end(), [](const auto& unit) { return !unit.empty(); }) - units_.begin();
  const auto begin = weights_.index.begin() + held;
  const auto most = begin + std::min(static_cast<std::ptrdiff_t>(kSlots), weights_.index.end() - begin);
  auto end = begin;
  while (end != most && std::find(begin, end, *end) == end) ++end;
  return {static_cast<int>(held), static_cast<int>(end - weights_.index.begin())};
}

std::vector<Task> Units::update_tasks() {
  require(seen_ == micro_batches_ || params_stream_ == &compute_, "a step of ", micro_batches_, " micro-batches ends after ",
          seen_);
  return build_update(shape(), slots_);
}

// If several ranks of the tensor axis hold the same piece, each knows only the gradient from its own tokens or heads. If they are
// some of the axis and not all of it, every set of holders has a row of its own in what is summed over all. On the computation's
// stream, like everything else that this group does in a micro-batch.
void Units::sum_over_holders(Arena& scratch, UnitRange units) {
  comm::Group& tensor = *groups_.tensor;
  if (tensor.size() == 1) return;
  struct Sum {
    Tensor mine, summed, slot;
  };
  std::vector<Sum> sums;
  const ArenaScope temporaries(scratch);
  for (const Parameter& p : store_.parameters()) {
    if (!units.contains(p.unit)) continue;
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
}

void Units::refresh(Arena& scratch) {
  Stream& stream = shard_count() > 1 ? *params_stream_ : compute_;
  if (&stream != &compute_) stream.wait(*compute_.record());
  store_.refresh_values(stream);
  run(scratch, build_refresh(shape(), slots_));
  if (offload_) fetch_stream_->wait(*compute_.record());  // masters and moments may have been loaded just now
}

void Units::wait_for_states(Stream& stream) {
  if (offload_) stream.wait(*offload_stream_->record());
}

std::vector<StatePiece> Units::states_of(const Task& update) const {
  return update.part < 0 ? store_.states(update.units) : offload_->piece(update.part);
}

// With shards on several ranks, casts run beside the computation, and a rank may fetch the codes when all ranks have theirs.
void Units::cast(Arena& scratch, UnitRange units) {
  store_.refresh_codes(shard_count() > 1 ? *params_stream_ : compute_, scratch, units);
  if (shard_count() == 1) return;
  for (comm::Group* group : groups_.all_shards()) group->fence(*params_stream_);
}

StepShape Units::shape() const {
  StepShape result;
  describe(result);
  return result;
}

void Units::describe(StepShape& shape) const {
  shape.sharded = shard_count() > 1;
  shape.resharded = shard_count() > 1 && layout_.weights == Weights::resharded;
  shape.reduced = params_stream_ != &compute_;
  shape.sharded_gradients = gradients() == Gradients::sharded;
  shape.first = first_;
  if (offload_) offload_->describe(shape);
  shape.lanes = layout_.lanes;
  shape.weight_slot = weights_.index;
  shape.gradient_slot = gradients_.index;
  shape.two_copies.clear();
  for (const std::vector<Parameter*>& unit : units_) {
    shape.two_copies.push_back(
        std::any_of(unit.begin(), unit.end(), [](const Parameter* p) { return p->copy(Copy::row_order).has_whole(); }));
  }
}

void Units::run(Arena& scratch, const Task& task) {
  switch (task.kind) {
    case Kind::gather:
      return gather(scratch, task);
    case Kind::open:
      return open(task);
    case Kind::close:
      return;  // others only wait for the end of its use
    case Kind::reduce:
      return reduce(scratch, task);
    case Kind::cast:
      return cast(scratch, task.units);
    case Kind::fetch:
    case Kind::offload:
      return offload_->run(executor_.stream(task.stream), task);
    default:
      require(false, "a task that is not one of units");
  }
}

void Units::run(Arena& scratch, const std::vector<Task>& tasks) {
  executor_.run(tasks, [&](const Task& task) { run(scratch, task); });
}

void Units::with(Arena& scratch, Need now, Need next, const std::function<void()>& body) {
  const StepShape shape = this->shape();
  ScheduleBuilder before(shape, slots_, reduces_ && seen_ == micro_batches_), after = before;
  before.open(now);
  before.gather(next);
  run(scratch, before.take());
  body();
  after.close(now);
  run(scratch, after.take());
}

void Units::reduce_now(Arena& scratch) {
  const StepShape shape = this->shape();
  ScheduleBuilder builder(shape, slots_, reduces_ && seen_ == micro_batches_);
  builder.reduce_pending(true);
  run(scratch, builder.take());
}

void Units::gather(Arena& scratch, const Task& task) {
  const TraceRange range(*params_stream_, concat("gather unit ", task.index));
  const bool in_slot = weights_.bytes_of(task.index) > 0;
  Pieces pieces(weights_.of(task.index));
  const auto group_of = [](const Parameter* p) { return p->shards; };
  in_batches(*params_stream_, cut(task.index), group_of, [&](const Parameter* p, comm::Group& group) {
    const auto all_gather = [&](const Tensor& part, const Tensor& whole) {
      group.all_gather(*params_stream_, scratch, {.x = padded(part, p->stride), .y = whole});
    };
    Whole whole;
    if (in_slot) {
      whole = whole_in(pieces, *p, store_.storage().compute);
    } else {
      whole = {.value = padded(p->value, p->shard_count() * p->stride),
               .codes = padded(p->codes.rowwise, p->shard_count() * p->stride),
               .column_codes = padded(p->column_codes, p->shard_count() * p->stride)};
    }
    const bool square = !p->copy(Copy::row_order).has_whole();
    if (task.values && p->copy(Copy::values).has_whole()) all_gather(p->value_shard, whole.value);
    if (p->spec.quant && (square ? task.values : task.rowwise)) all_gather(p->rowwise_shard, whole.codes);
    if (p->spec.quant && !square && task.columnwise) all_gather(p->columnwise_shard, whole.column_codes);
  });
  for (const Parameter* p : unit(task.index)) {
    Quantized q = p->codes;
    if (!q.columnwise || !(p->column_codes ? task.columnwise : task.values)) continue;
    if (p->column_codes) q.rowwise = p->column_codes;
    kernels::transpose_codes(*params_stream_, q);
  }
}

void Units::open(const Task& task) {
  if (task.use != Use::gradients && weights_.bytes_of(task.index) > 0) {
    Pieces pieces(weights_.of(task.index));
    for (Parameter* p : cut(task.index)) {
      const Whole whole = whole_in(pieces, *p, store_.storage().compute);
      const auto shaped = [&](const Tensor& x) { return x ? Tensor(x.data, x.dtype, p->spec.shape) : Tensor{}; };
      p->value = shaped(whole.value);
      p->codes.rowwise = shaped(whole.codes);
      p->column_codes = shaped(whole.column_codes);
    }
  }
  if (!writes_gradients(task.use) || gradients() == Gradients::whole) return;
  Pieces pieces(gradients_.of(task.index));
  for (Parameter* p : cut(task.index)) {
    p->grad = {pieces.next(layout_.reduce, p->shard_count() * p->stride).data, layout_.reduce, p->spec.shape};
    if (!p->spec.grad_from_product) compute_.zero(p->grad.data, p->grad.bytes());
  }
}

void Units::reduce(Arena& scratch, const Task& task) {
  {
    const TraceRange range(*params_stream_, concat("reduce unit ", task.index));
    if (shard_count() > 1) reduce_over_shards(scratch, task.index, task.first);
    if (groups_.replicas->size() > 1 && task.last) reduce_over_replicas(scratch, task.index);
  }
  if (gradients() == Gradients::whole) return;
  for (Parameter* p : cut(task.index)) p->grad = {};  // the memory is the next unit's
}

// Sharded gradients are written in the dtype in which ranks exchange them, whole ones are cast to it. A shard that is kept in
// this dtype is reduced where it stays, if it is the first of the step.
void Units::reduce_over_shards(Arena& scratch, int index, bool fresh) {
  const bool sharded = gradients() == Gradients::sharded, casts = !sharded && store_.storage().grad != layout_.reduce;
  require(fresh || layout_.accumulates || compute_.kind() == DeviceKind::meta,
          "a second micro-batch of a layout of steps of one");
  struct Crossing {
    const Parameter* p;
    Tensor whole, part;  // with their padding
  };
  std::vector<Crossing> all;
  Pieces pieces(cast_.data());
  for (const Parameter* p : cut(index)) {
    const std::int64_t elements = p->shard_count() * p->stride;
    const Tensor whole = casts ? pieces.next(layout_.reduce, elements) : padded(p->grad, elements);
    const bool in_place = sharded && fresh && p->grad_shard.dtype == layout_.reduce;
    const std::int64_t first = p->shards->rank() * p->stride;
    all.push_back({p, whole, in_place ? padded(p->grad_shard, p->stride) : whole.slice_rows(first, first + p->stride)});
    if (casts) kernels::cast(*params_stream_, {.x = flat(p->grad), .y = whole.slice_rows(0, p->elements())});
  }
  const auto group_of = [](const Crossing& c) { return c.p->shards; };
  in_batches(*params_stream_, all, group_of, [&](const Crossing& c, comm::Group& group) {
    group.reduce_scatter(*params_stream_, scratch, {.x = c.whole, .y = c.part});
  });
  for (const Crossing& c : all) {
    const Tensor part = c.part.slice_rows(0, c.p->shard_elements);
    if (part.data == c.p->grad_shard.data) continue;
    if (fresh || !sharded) {
      kernels::cast(*params_stream_, {.x = part, .y = c.p->grad_shard});
    } else {
      kernels::add(*params_stream_, {.x = part, .y = c.p->grad_shard});
    }
  }
}

void Units::reduce_over_replicas(Arena& scratch, int index) {
  struct Crossing {
    Tensor part, x;
  };
  std::vector<Crossing> all;
  Pieces pieces(cast_.data());
  for (const Parameter* p : unit(index)) {
    const Tensor part = flat(p->grad_shard);
    const bool casts = part.dtype != layout_.reduce;
    all.push_back({part, casts ? pieces.next(layout_.reduce, p->stride).slice_rows(0, p->shard_elements) : part});
    if (casts) kernels::cast(*params_stream_, {.x = part, .y = all.back().x});
  }
  {
    const comm::Batch batch(*groups_.replicas, *params_stream_);
    for (const Crossing& c : all) groups_.replicas->all_reduce(*params_stream_, scratch, {.x = c.x});
  }
  for (const Crossing& c : all) {
    if (c.x.dtype != c.part.dtype) kernels::cast(*params_stream_, {.x = c.x, .y = c.part});
  }
}

}  // namespace octet::parallel
