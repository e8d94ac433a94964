// Runs the tasks of units (parallel/schedule.h): gathers weights, reduces gradients, and casts weights after the optimizer.
// Exchanges run on the params stream, in parallel with the computation:
//   weights    all-gather over shard x context of codes (one byte an element) and of values that are read as such
//   gradients  reduce-scatter over shard x context, then, after a step's last micro-batch, all-reduce over replicate
// If only one rank of shard x context holds an expert, the expert's weights are always there. Parameters that several ranks of
// the tensor axis hold in full (norms) are small: their gradients are summed over these ranks once a step. The exchanges come
// in the order of the calls, which is the same on all ranks. With one rank, nothing is exchanged.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "octet/device/arena.h"
#include "octet/device/device.h"
#include "octet/parallel/executor.h"
#include "octet/parallel/groups.h"
#include "octet/parallel/offload.h"
#include "octet/parallel/parameter.h"
#include "octet/parallel/schedule.h"

namespace octet::parallel {

class Units {
 public:
  // Takes the memory that units use in turn. `store` must be materialised over these groups. `shape` names the model's units;
  // the constructor adds how they are stored and exchanged. All arguments must outlive this object.
  Units(Stream& compute, ParameterStore& store, const Groups& groups, const Layout& layout, StepShape& shape);

  // Returns the contents of the slots, from which the next list is built.
  Slots& slots() { return slots_; }
  // Begins a step: all gradients start from zero.
  void begin_step();

  Executor& executor() { return executor_; }
  // Enqueues a task of a unit, a cast, or a copy of states. Also runs a list of such tasks.
  void run(Arena& scratch, const Task& task);
  void run(Arena& scratch, const std::vector<Task>& tasks);
  // Prepares the casts of weights. Call it once, when the scale slots of the weights are known.
  void prepare_casts();
  // Returns the parameters and pieces on which the tasks of an optimizer step work.
  UpdateWork update_work() const;
  // Lets a stream wait until all states have been copied back to host memory. Call it before they are read or written there.
  void wait_for_states(Stream& stream);
  // All-reduces the reduced gradients of parameters that several ranks of the tensor axis hold (norms, shared KV heads). All
  // replicas then have the same bits.
  void sum_over_holders(Arena& scratch, UnitRange units);

  // Calls exchange(stream) on the params stream, after all work that the computation has enqueued so far. The computation waits
  // for the exchange.
  void exchange(const std::function<void(Stream&)>& exchange);
  // Calls a function that exchanges with other pipeline stages on the params stream: stages that are ready wait there for the
  // others. Does nothing if there is one stage.
  void exchange_of_stages(const std::function<void()>& exchange);

  // Makes values and codes from the primaries after loading or initialising. Weights that were gathered before are stale; the
  // first units are gathered again for the next forward pass.
  void refresh(Arena& scratch);

  // Measures how long the computation waits for other ranks, from here until take_waits(), which waits for the stream. These
  // are exchanges that no computation hides, and waits for other pipeline stages. On the CPU the streams run in the order of
  // the program, so the result is the time of all communication.
  void start_waits();
  Waits take_waits();

  // Returns the bytes that units use in turn: the slots for their weights, the slots for their gradients with the memory for
  // casts, and the slots for offloaded states.
  struct SharedBytes {
    std::size_t weights = 0, gradients = 0, states = 0;
  };
  SharedBytes shared_bytes() const;

  // Where streams run in the order of the program, keys travel on the params stream and tokens of the tensor axis on the
  // computation's. One rank has no streams besides the computation's and those of offload.
  Streams& streams() { return streams_; }
  // Returns the stream on which ranks exchange in parallel with the computation. With one rank, it is the computation's own.
  Stream& params_stream() const { return streams_[StreamId::params]; }

 private:
  // A gradient, and the tensor that ranks exchange for it, in layout.reduce.
  struct Crossing {
    const Parameter* p;
    Tensor x;
  };
  // The parameters of a unit that this rank holds.
  struct Unit {
    std::vector<Parameter*> all, trained;              // in the order of the store
    std::vector<Parameter*> cut, cut_and_trained;      // those that are sharded, group by group
    std::vector<Crossing> to_shards, to_replicas;      // whole gradients of the former, shards of gradients of `trained`
    kernels::TensorList zeroed;                        // the gradients in a slot that no product will write
    bool has_rowwise = false, has_columnwise = false;  // frozen weights were gathered; they stay if weights are kept
  };
  Unit& unit(int index) { return units_[static_cast<std::size_t>(index)]; }
  std::vector<Buffer> make_slots(int (StepShape::*slot)(int) const, std::span<const Copy> copies, MemoryCategory category);
  // Places the whole copies of a unit in this memory. Returns the bytes that they take.
  std::size_t place(std::size_t unit, std::span<const Copy> copies, void* slot);
  std::size_t place_crossings(void* casts);
  void wait_for_params();
  void gather(Arena& scratch, const Task& task);
  void reduce(Arena& scratch, const Task& task);
  void cast(Arena& scratch, UnitRange units);
  void reduce_over_shards(Arena& scratch, const Unit& unit, bool fresh);
  void reduce_over_replicas(Arena& scratch, const Unit& unit);
  std::vector<Stream*> waiting_streams() const;

  Stream& compute_;
  ParameterStore& store_;
  const Groups& groups_;
  Layout layout_;
  StepShape& shape_;
  Streams streams_;
  std::vector<Unit> units_;
  std::vector<Buffer> weight_slots_, gradient_slots_;
  Slots slots_;
  Executor executor_;
  std::optional<Offload> offload_;
  Buffer cast_;  // a unit's gradients in layout.reduce, if they have another dtype
};

}  // namespace octet::parallel
