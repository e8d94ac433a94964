// The order of a step, as data: which unit is gathered, used and reduced when, on which stream, and what waits for what.
//
// A unit is the parameters that are gathered, used and reduced together: the embedding, a block, the final norm with the head (a
// tied head belongs to the embedding's unit). On ranks that hold shards of parameters a unit is gathered before it is used and,
// if the layout says so, dropped afterwards. Gradients are summed over the ranks (Zhao et al., PyTorch FSDP, 2023; Rajbhandari
// et al., ZeRO, 2020).
//
// Pipeline stages send each other activations and their gradients as messages, beside the computation (boundary.h).
//
// Two micro-batches may go through a model with a mixture of experts together, as two lanes that take turns: one computes while
// the other's rows are on their way to the experts or back. A lane's tasks run one after another, on whatever streams, so its
// memory needs no other waits.
//
// The optimizer's step is a list, too. With offload it fetches pieces of the states from host memory and copies them back
// (offload.h).
//
// The build functions are pure functions of the shape of the model and of what the slots hold at the start. All ranks of a stage
// build the same list, so all issue their exchanges in the same order. executor.h runs the list, task by task.
#pragma once

#include <array>
#include <cstdint>
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

// Communication of parameters that starts with a part of a block and overlaps it. GEMMs count on all multiprocessors and would
// wait for those that a collective holds; attention has many more blocks of threads than there are multiprocessors, and loses
// only what is held.
enum class Beside : std::uint8_t { nothing, gather, reduce };

// A block is cut into parts only where work of another stream may be enqueued between two of them.
struct Part {
  const char* name;
  Beside beside = Beside::nothing;
  StreamId stream = StreamId::compute;
};

enum class Kind : std::uint8_t {
  // Tasks of a unit:
  gather,  // all-gathers its weights over the shards
  open,    // waits until its weights are gathered, and zeroes the gradients in its slot that no product overwrites
  close,   // ends its use, for which other streams wait
  reduce,  // sums its gradients over the ranks
  // Tasks of messages:
  receive,  // from a neighbouring stage
  take,     // copies it from the receive buffer to the memory of its micro-batch
  give,     // copies it from there to the send buffer
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
  sums,     // adds up over the ranks what the step counted: squares, losses, tokens; and takes the largest of their amaxes
  scales,   // decides whether the step is skipped, and updates the scales of delayed scaling
  update,   // AdamW, of all states of some units, or of the piece that lies in a slot
  cast,     // makes the FP8 codes of units from their new weights
  fetch,    // copies a piece of the states from host memory to a slot
  offload,  // copies it back
};

constexpr bool is_part(Kind kind) { return kind == Kind::forward || kind == Kind::recompute || kind == Kind::backward; }

struct Task {
  Kind kind = Kind::open;
  StreamId stream = StreamId::compute;
  int index = 0;         // of a unit, a block, a Message, an update or a slot for states; load: of a chunk
  int part = 0;          // of a block; fetch, offload, update: the number of the piece among all pieces, -1 without offload
  UnitRange units = {};  // squares, cast, and update without offload
  Use use = Use::forward;                                    // open, close
  bool values = false, rowwise = false, columnwise = false;  // gather: which copies
  bool first = false;                                        // reduce: of the step; forward, backward: of the block
  bool last = false;  // reduce: the step's last micro-batch; forward, backward: of the block
  bool after_compute = false;       // waits for all that the computation has enqueued so far
  int micro_batch = 0, flight = 0;  // tasks of the computation, take and give
  Begins begins = Begins::none;     // head, backward: which gradients their products begin
  // Waits for the event of the latest task of this kind that left one behind with this number, or for nothing if it is -1.
  struct Wait {
    Kind kind = Kind::open;
    int number = -1;
  };
  std::array<Wait, 2> waits = {};
  bool leaves_event = false;  // for tasks of other streams
  // The number of the event: the index, or of a part of a block the flight.
  int event() const { return is_part(kind) ? flight : index; }
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
  int recomputed_blocks = 0;       // so many of the model's blocks, from the first on, keep only their input
  int lanes = 1;                   // the most passes that take turns
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
  // The units that the optimizer updates and casts together, in this order. Forward uses the first of them first, and while the
  // others are updated they are gathered. The gradients of the others are complete first.
  std::vector<UnitRange> updates;
  // With offload: the units of the pieces in which states are updated, in the order of the units; and the number of slots for
  // them.
  std::vector<int> pieces;
  int state_slots = 0;
  int units() const { return static_cast<int>(two_copies.size()); }
  // The slots of a unit's weights and gradients.
  int weight_slot(int unit) const { return slot(unit, resharded); }
  int gradient_slot(int unit) const { return slot(unit, sharded_gradients); }
  // Units that are used one at a time lie in one of kUnitSlots slots in turn, so that the next one can be gathered meanwhile:
  // blocks take turns in two slots, and the units at the edges of the model use the third. Otherwise each has a slot of its own.
  int slot(int unit, bool in_turn) const;
};
inline constexpr int kUnitSlots = 3;

// Returns StepShape::updates: first the units that this stage uses first and that can be gathered beside each other, for example
// the embedding and two blocks, then the others. The forward pass of the first units hides what is cast and gathered next. One
// rank hides nothing, so it updates all units together.
std::vector<UnitRange> update_ranges(const StepShape& shape);

// The contents of the slots between two lists. Building a list changes them.
struct Slots {
  struct Weights {
    int unit = -1;
    bool rowwise = false, columnwise = false;  // what of it is there or on its way
    bool open = false;
    int closed = -1;  // the unit for whose close the next gather into this slot waits
  };
  std::vector<Weights> weights;
  std::vector<int> gradient_user;  // of each gradient slot: the unit that was reduced from it last, or -1
  std::vector<int> reduced;        // the units whose gradients this step has reduced, in their order
  int pending = -1;                // a unit whose gradient is complete and not yet reduced, or -1
  std::vector<char> offloaded;     // of each slot for states: whether it was copied back before
  std::array<bool, kMessages> taken = {}, sent = {};  // whether a message of this kind ever was
  // A flight is the memory of a micro-batch between its forward and its backward pass through a chunk. This is the backward pass
  // that will free it. A free flight has no micro-batch (-1).
  std::vector<Visit> flights;

  explicit Slots(const StepShape& shape = {});
};

// A pass of a micro-batch that takes turns with others.
struct Lane {
  int micro_batch = 0, flight = 0;
  Begins begins = Begins::none;
};

// Appends tasks to a list, and keeps account of the slots.
class ScheduleBuilder {
 public:
  // `last`: the last of a step's micro-batches.
  ScheduleBuilder(const StepShape& shape, Slots& slots, bool last) : s_(shape), slots_(slots), last_(last) {}

  void begin(bool last) { last_ = last; }
  // Sets the lane of the tasks that follow.
  void enter(Lane lane) { lane_ = lane; }
  void add(Kind kind, int index = 0) {
    tasks_.push_back(
        {.kind = kind, .index = index, .micro_batch = lane_.micro_batch, .flight = lane_.flight, .begins = lane_.begins});
  }
  void take(Message message);
  void send(Message message);
  // Gathers what of a unit is not there. Nothing if its slot is in use by another unit: open() gathers it then.
  void gather(Need need, bool after_compute = false);
  void open(Need need);
  void close(Need need);
  // Reduces the pending unit, if there is one: behind its use, or behind all that the computation has enqueued so far.
  void reduce_pending(bool after_compute = false);
  // Adds a part of a block. `next` is gathered beside it if the part says so.
  void add_part(Kind kind, int block, int part, Need next);
  // Add the squares of units' gradients, the exchange of what the step counted, and what follows from it.
  void add_squares(UnitRange units);
  void add_sums();
  // Fetches a piece of the states into its slot.
  void fetch(int piece);
  // Updates updates[number]. With offload, every piece is fetched some pieces ahead.
  void update(int number);
  // Makes the codes of units, whose gathered copies are then stale, and gathers again those of them that forward uses first.
  void cast(UnitRange units);

  // Returns the list, and begins the next one.
  std::vector<Task> finish() { return std::exchange(tasks_, {}); }

 private:
  const StepShape& s_;
  Slots& slots_;
  bool last_;
  Lane lane_;
  std::vector<Task> tasks_;
};

// Builds the tasks of visits [begin, end) of this stage, of all visits in a step of `micro_batches` micro-batches. The last
// backward pass through a chunk reduces the gradients of its units.
std::vector<Task> build_visits(const StepShape& shape, Slots& slots, std::span<const Visit> visits, std::size_t begin,
                               std::size_t end, int micro_batches);
// Forward of a micro-batch alone; `head` then computes losses or logits.
std::vector<Task> build_evaluation(const StepShape& shape, Slots& slots);

// Ends a step: reduces what is left, and updates all units.
std::vector<Task> build_update(const StepShape& shape, Slots& slots);

// A task on a stream that keeps time, in seconds.
struct TimedTask {
  Task task;
  double begin = 0, end = 0;
};

}  // namespace octet::parallel
