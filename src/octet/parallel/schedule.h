// The order of a step, as data: when each unit is gathered, used and reduced, on which stream, and which tasks wait for which.
//
// A unit is a set of parameters that are gathered, used and reduced together: the embedding, a block, the final norm with the
// head (a tied head belongs to the embedding's unit). On ranks that hold shards of parameters, a unit is gathered before it is
// used and, if the layout says so, dropped afterwards. Gradients are summed over the ranks (Zhao et al., PyTorch FSDP, 2023;
// Rajbhandari et al., ZeRO, 2020).
//
// Pipeline stages send each other activations and their gradients as messages, in parallel with the computation (boundary.h).
//
// Two micro-batches may pass together through a model with a mixture of experts, as two lanes that take turns: one computes
// while the other's rows travel to the experts or back.
//
// The optimizer's step is also a list. With offload it fetches pieces of the states from host memory and copies them back
// (offload.h).
//
// The build functions are pure functions of the shape of the model and of what the slots hold at the start. All ranks of a stage
// build the same list, so all issue their exchanges in the same order. Nobody writes the waits: they follow from what the tasks
// read and write (ScheduleBuilder::finish). executor.h runs the list, task by task.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "octet/parallel/groups.h"
#include "octet/parallel/layout.h"
#include "octet/parallel/pipeline.h"
#include "octet/parallel/streams.h"

namespace octet::parallel {

constexpr StreamId receive_stream(Message message) {
  return message == Message::activations ? StreamId::receive_activations : StreamId::receive_gradients;
}
constexpr StreamId send_stream(Message message) {
  return message == Message::activations ? StreamId::send_activations : StreamId::send_gradients;
}

// The way in which a pass uses a unit.
enum class Use : std::uint8_t {
  forward,    // weights as the forward GEMMs read them
  backward,   // weights as dgrad reads them; gradients are written
  both,       // weights as both read them; gradients are written
  gradients,  // no weights; gradients are written
};
constexpr bool reads_forward(Use use) { return use == Use::forward || use == Use::both; }
constexpr bool reads_backward(Use use) { return use == Use::backward || use == Use::both; }
constexpr bool writes_gradients(Use use) { return use != Use::forward; }

struct Need {
  int unit = -1;  // -1: none
  Use use = Use::forward;
};

// An exchange of parameters that starts together with a part of a block and overlaps it. A collective occupies multiprocessors.
// A GEMM plans with all multiprocessors and would wait for them; attention has many more blocks of threads than there are
// multiprocessors, and loses only the occupied ones.
enum class Beside : std::uint8_t { nothing, gather, reduce };

// A block is cut into parts only where work of another stream may be enqueued between two parts.
struct Part {
  const char* name;
  Beside beside = Beside::nothing;
  StreamId stream = StreamId::compute;
  // The memory that it uses: the keys of other ranks and their gradients, which travel while other parts run; and the rest.
  bool keys = false, rest = true;
  bool after_compute = false;  // Task::after_compute, for a part that reads or reuses memory of the computation before it
};

enum class Kind : std::uint8_t {
  // Tasks of a unit:
  gather,  // all-gathers the unit's weights over the shards
  open,    // waits until its weights are gathered, and zeroes the gradients in its slot that no product overwrites
  close,   // ends the unit's use, for which other streams wait
  reduce,  // sums the unit's gradients over the ranks
  // Tasks of messages:
  receive,  // from a neighbouring stage
  take,     // copies the message from the receive buffer to the memory of its micro-batch
  give,     // copies the message from there to the send buffer
  send,     // to a neighbouring stage
  // Tasks of the computation. The parts of a block are those of models::Block.
  load,  // begins a micro-batch's pass through a chunk
  embed,
  forward,
  recompute,  // a forward part again, for backward
  head,
  backward,
  embed_backward,
  // Tasks of the optimizer:
  squares,  // adds the squares of units' gradients to the sum whose root is the gradient norm
  sums,     // sums the step's counts over the ranks (squares, losses, tokens), and takes the maximum of amaxes
  scales,   // decides whether the step is skipped, and updates the scales of delayed scaling
  update,   // AdamW for all states of some units, or for the piece that lies in a slot
  cast,     // makes the FP8 codes of units from their new weights
  fetch,    // copies a piece of the states from host memory to a slot
  offload,  // copies the piece back
};

constexpr bool is_part(Kind kind) { return kind == Kind::forward || kind == Kind::recompute || kind == Kind::backward; }

struct Task {
  Kind kind = Kind::open;
  StreamId stream = StreamId::compute;
  int index = 0;           // of a unit, a block, a Message, an update or a slot for states; load: of a chunk
  int part = 0;            // of a block; fetch, offload, update: the number of the piece among all pieces, -1 without offload
  UnitRange units = {};    // squares, update, cast
  Use use = Use::forward;  // open, close
  bool values = false, rowwise = false, columnwise = false;  // gather: which copies
  bool first = false;                                        // reduce: of the step; forward, backward: of the block
  bool last = false;                // reduce: the step's last micro-batch; forward, backward: of the block
  bool after_compute = false;       // also waits for all work that the computation has enqueued so far
  int micro_batch = 0, flight = 0;  // tasks of the computation, take and give
  Overwrites overwrites = Overwrites::none;  // head, backward: which gradients their products overwrite
  // Waits for the event of the latest task of this kind and number that left one.
  struct Wait {
    Kind kind = Kind::open;
    int number = 0;
  };
  std::vector<Wait> waits = {};
  bool leaves_event = false;  // for tasks of other streams
  // The number of the event: that of the flight and the stream for a part of a block, otherwise the index.
  int event() const { return is_part(kind) ? flight * static_cast<int>(kStreams) + static_cast<int>(stream) : index; }
};

// The properties of a model and a layout on which the order depends.
struct StepShape {
  int embedding = 0, first_block = 0, blocks = 0, head = 0;  // units; a tied head is the embedding's
  Stages stages = {};                                        // of the pipeline
  int stage = 0;                                             // of this rank
  bool sharded = false;                                      // several ranks hold shards of parameters
  bool resharded = false;                                    // units are dropped after their use
  bool reduced = false;                                      // gradients are summed over several ranks
  bool sharded_gradients = false;  // a unit's gradient is reduced after each micro-batch, and its memory used again
  int recomputed_blocks = 0;       // the number of blocks, from the model's first on, that keep only their input
  int lanes = 1;                   // the largest number of passes that take turns
  // The parts of each block.
  struct BlockParts {
    std::vector<Part> forward, backward;
  };
  std::vector<BlockParts> block_parts;
  bool recomputes(int block) const { return block < recomputed_blocks; }
  // The parts of a task of a block.
  const std::vector<Part>& parts_of(Kind kind, int block) const;
  // Whether the rowwise and columnwise codes of each unit are gathered separately (row and MX tiles).
  std::vector<char> two_copies;
  // The units that the optimizer updates and casts together, in this order. The first units are those that forward uses first;
  // they are gathered while the others are updated. The gradients of the other units are complete first.
  std::vector<UnitRange> updates;
  // With offload: the units of the pieces in which states are updated, in the order of the units, and the number of slots for
  // pieces.
  std::vector<int> pieces;
  int state_slots = 0;
  int units() const { return static_cast<int>(two_copies.size()); }
  // The slots of a unit's weights and gradients.
  int weight_slot(int unit) const { return slot(unit, resharded); }
  int gradient_slot(int unit) const { return slot(unit, sharded_gradients); }
  // Units that are used one at a time share kUnitSlots slots, so that the next unit can be gathered meanwhile: blocks alternate
  // between two slots, and the units at the edges of the model use the third. Other units have their own slots.
  int slot(int unit, bool in_turn) const;
};
inline constexpr int kUnitSlots = 3;

// Returns StepShape::updates: first the units that this stage uses first and that can be gathered at the same time, for example
// the embedding and two blocks, then the others. The forward pass of the first units hides the casts and gathers of the others.
// With one rank there is nothing to hide, so it updates all units together.
std::vector<UnitRange> update_ranges(const StepShape& shape);

// Memory that tasks of several streams use.
enum class Memory : std::uint8_t {
  shard,  // of a unit: the rank's shards of weights, and their states
  rowwise,
  columnwise,  // of a slot for weights: the copies that forward reads, and those that backward reads
  gradient,    // of a slot for gradients
  summed,      // of a unit: its gradients, summed over the ranks
  counts,      // of the step; the computation adds its own before the squares
  flight,      // of a micro-batch between forward and backward
  keys,        // of the same micro-batch: Part::keys
  received,
  sent,       // messages
  states,     // of a slot for states
  offloaded,  // of a piece of the states: its place in host memory
};

// The contents of the slots between two lists. Building a list updates them.
struct Slots {
  struct Weights {
    int unit = -1;
    bool rowwise = false, columnwise = false;  // what of it is there or on its way
    bool open = false;
  };
  std::vector<Weights> weights;
  std::set<int> reduced;  // the units whose gradients this step has reduced
  int pending = -1;       // a unit whose gradient is complete and not yet reduced, or -1
  // A flight is the memory of a micro-batch between its forward and its backward pass through a chunk. For each flight, the
  // backward pass that will free it. A free flight has no micro-batch (-1).
  std::vector<Visit> flights;
  // For each stream, the number of its last task that has ended. The tasks of all lists are numbered, from 1.
  using Ended = std::array<std::int64_t, kStreams>;
  struct User {
    Task::Wait event;
    StreamId stream;
    bool writes;
    Ended ended;  // after this task
  };
  std::map<std::pair<Memory, int>, std::vector<User>> users;  // the last writer, and the last reader of each stream since
  std::array<Ended, kStreams> ended = {};                     // before the next task of each stream
  std::int64_t tasks = 0;                                     // how many there were

  explicit Slots(const StepShape& shape = {});
};

// A pass of a micro-batch that takes turns with others.
struct Lane {
  int micro_batch = 0, flight = 0;
  Overwrites overwrites = Overwrites::none;
};

// Appends tasks to a list and keeps track of the slots.
class ScheduleBuilder {
 public:
  // `last` says whether these are the tasks of a step's last micro-batch.
  ScheduleBuilder(const StepShape& shape, Slots& slots, bool last) : s_(shape), slots_(slots), last_(last) {}

  void begin(bool last) { last_ = last; }
  // Sets the lane of the tasks that follow.
  void enter(Lane lane) { lane_ = lane; }
  void add(const Task& task) { tasks_.push_back(task); }
  void add(Kind kind, int index = 0) {
    add({.kind = kind, .index = index, .micro_batch = lane_.micro_batch, .flight = lane_.flight, .overwrites = lane_.overwrites});
  }
  // Gathers the copies of a unit that are not there. Does nothing if another unit uses its slot; open() then gathers it.
  void gather(Need need, bool after_compute = false);
  void open(Need need);
  void close(Need need);
  // Reduces the pending unit, if there is one, after its use or after all that the computation has enqueued so far.
  void reduce_pending(bool after_compute = false);
  // Adds a part of a block. Starts gathering `next` with it if the part says so.
  void add_part(Kind kind, int block, int part, Need next);
  // Makes the codes of units, whose gathered copies are then stale, and gathers the units that forward uses first again.
  void cast(UnitRange units);

  // Returns the list with its waits, and begins the next one.
  std::vector<Task> finish();

 private:
  const StepShape& s_;
  Slots& slots_;
  bool last_;
  Lane lane_;
  std::vector<Task> tasks_;
};

// Builds the tasks of the visits [begin, end) of this stage, out of all visits in a step of `micro_batches` micro-batches. The
// last backward pass through a chunk reduces the gradients of its units.
std::vector<Task> build_visits(const StepShape& shape, Slots& slots, std::span<const Visit> visits, std::size_t begin,
                               std::size_t end, int micro_batches);
// Builds the forward pass of one micro-batch; `head` then computes losses or logits.
std::vector<Task> build_evaluation(const StepShape& shape, Slots& slots);

// Builds the end of a step: reduces the remaining units, and updates all units.
std::vector<Task> build_update(const StepShape& shape, Slots& slots);

// A task on a stream that simulates time. Times are in seconds.
struct TimedTask {
  Task task;
  double begin = 0, end = 0;
  double tensor_s = 0;  // what the exchanges of the tensor axis within the task take, although products may hide some of it
};

}  // namespace octet::parallel
