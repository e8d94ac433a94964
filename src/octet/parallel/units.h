// Runs what a schedule says of units (parallel/schedule.h): gathers weights, reduces gradients, and casts and gathers after the
// optimizer. Exchanges run on the params stream beside the computation:
//   weights    all-gather over shard x context of codes (one byte an element) and of values that are read as such
//   gradients  reduce-scatter over shard x context, then, after a step's last micro-batch, all-reduce over replicate
// An expert's group are the ranks of shard x context that hold it (experts.h); if that is one rank, its weights are always there.
// What several ranks of the tensor axis hold alike (norms) is small: its gradient is summed over them once a step. The exchanges
// come in the order of the calls, which is the same on all ranks. One rank exchanges nothing.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "octet/device/arena.h"
#include "octet/device/device.h"
#include "octet/parallel/groups.h"
#include "octet/parallel/parameter.h"
#include "octet/parallel/schedule.h"

namespace octet::parallel {

class Units {
 public:
  // Takes the memory that units lie in while they are in use. `store` is materialised over these groups. It outlives this, as do
  // stream and groups. `edges`: units that are used before and after the others, and never together; the others are used one at a
  // time, while the next one is gathered.
  Units(Stream& compute, ParameterStore& store, const Groups& groups, const Layout& layout, const std::vector<int>& edges);

  // Says what of this rank's units a schedule depends on. The rest of the shape is left as it is.
  void describe(StepShape& shape) const;
  // What the slots hold: the start of the next list.
  Slots& slots() { return slots_; }

  // Begins a step of `micro_batches` passes with gradients. All gradients are nothing.
  void begin_step(std::int64_t micro_batches);
  // Begins one of them. Returns whether it is the last one.
  bool begin_micro_batch() { return ++seen_ >= micro_batches_; }

  Stream& stream_of(const Task& task) { return task.stream == StreamId::compute ? compute_ : *params_stream_; }
  // Enqueue what a task must wait for, the task if it is one of a unit, and the event that it leaves behind.
  void wait_before(const Task& task);
  void run(Arena& scratch, const Task& task);
  void signal_after(const Task& task);
  // All three, for tasks of units.
  void run(Arena& scratch, const std::vector<Task>& tasks);

  // body() with a unit open, while `next` is gathered; and the reduction of what is pending, behind all that is enqueued. For
  // passes that are no list.
  void with(Arena& scratch, Need now, Need next, const std::function<void()>& body);
  void reduce_now(Arena& scratch);

  // All units in the order in which forward uses them, and in that in which backward is done with them, for the optimizer. Of
  // several ranks these are two ranges, the first units and the others: gradients of the others are read while those of the first
  // are on the wire, and the first are gathered for the next step while the others are updated.
  std::vector<UnitRange> forward_order() const;
  std::vector<UnitRange> backward_order() const;

  // The parts of these units' gradients are complete, for the stream of the computation. All micro-batches must have run.
  void finish_gradients(Arena& scratch, UnitRange units);

  // exchange(stream) with what the computation has enqueued so far behind it and what it enqueues later before it.
  void exchange(const std::function<void(Stream&)>& exchange);

  // After loading or initialising, and after the optimizer: ParameterStore::refresh and refresh_codes; what was gathered is
  // stale, and the first units are gathered anew for the next forward pass.
  void refresh(Arena& scratch);
  void refresh_codes(Arena& scratch, UnitRange units);

  // Times what the computation waits for other ranks, from here until take_waits(), which returns the seconds and waits for it:
  // the communication that nothing hides. On the CPU streams run in the order of the program, so that is all communication.
  void start_waits();
  double take_waits();

  // What is enqueued beside the computation; the computation's own where there is one rank.
  Stream& params_stream() { return *params_stream_; }
  // What ranks of the context axis exchange beside the computation and must not come behind gradients; the wire where streams run
  // in the order of the program.
  Stream& context_stream() { return own_context_stream_ ? *own_context_stream_ : *params_stream_; }

 private:
  // Memory in which units lie one at a time, or none if the store keeps all of them.
  struct SlotMemory {
    std::vector<Buffer> slots;
    std::vector<int> index;  // of each unit
    void* of(int unit) const { return slots[static_cast<std::size_t>(index[static_cast<std::size_t>(unit)])].data(); }
    std::size_t bytes_of(int unit) const {
      return slots[static_cast<std::size_t>(index[static_cast<std::size_t>(unit)])].bytes();
    }
  };
  enum class Keep : std::uint8_t { all, in_use };
  template <class Bytes>
  SlotMemory make_slots(Keep keep, const std::vector<int>& edges, MemoryCategory category, Bytes bytes_of_unit);

  int parts() const { return store_.parts(); }
  Gradients gradients() const { return parts() > 1 ? layout_.gradients : Gradients::whole; }
  // What this rank holds of a unit, and what of that lies in parts, those of one group together.
  const std::vector<Parameter*>& unit(int index) const { return units_[static_cast<std::size_t>(index)]; }
  const std::vector<Parameter*>& cut(int index) const { return cut_[static_cast<std::size_t>(index)]; }
  UnitRange first_units() const;
  void renew(Arena& scratch, UnitRange units);
  StepShape shape() const;
  std::unique_ptr<Event>& event_of(int unit, Signal signal);
  void gather(Arena& scratch, const Task& task);
  void open(const Task& task);
  void close(const Task& task);
  void reduce(Arena& scratch, const Task& task);
  void reduce_over_shards(Arena& scratch, int unit, bool first);
  void reduce_over_replicas(Arena& scratch, int unit);
  void sum_over_holders(Arena& scratch, UnitRange units);
  void params_after_compute();
  void compute_after_params();

  Stream& compute_;
  ParameterStore& store_;
  const Groups& groups_;
  Layout layout_;
  std::unique_ptr<Stream> own_params_stream_, own_context_stream_;
  Stream* params_stream_;
  std::vector<std::vector<Parameter*>> units_, cut_;
  SlotMemory weights_, gradients_;
  Slots slots_;
  UnitRange first_;
  std::vector<std::array<std::unique_ptr<Event>, 4>> events_;  // of each unit, by Signal
  Buffer cast_;  // a unit's gradients in layout.reduce, where they are of another dtype
  std::int64_t micro_batches_ = 1, seen_ = 0;
};

}  // namespace octet::parallel
