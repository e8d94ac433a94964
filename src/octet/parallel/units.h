// Units: what is gathered, used and reduced together, usually a block of the model. On ranks that hold parts of parameters a unit
// is put together before it is used and, where the layout says so, dropped afterwards; gradients are added up over the ranks and
// cut into parts (Zhao et al., PyTorch FSDP, 2023; Rajbhandari et al., ZeRO, 2020). All of it runs on a stream of its own beside
// the computation, which waits for what it needs:
//   weights    all_gather over shard x context of codes (one byte an element) and of values that are read as such
//   gradients  reduce_scatter over shard x context, then, after a step's last micro-batch, all_reduce over replicate
// Of an expert it is the ranks of shard x context that hold it (experts.h); where that is one, its weights are always there.
// What several ranks of the tensor axis hold alike (norms) is small: its gradient is summed over them once a step.
// Order of the exchanges is that of the calls, the same on all ranks. One rank exchanges nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "octet/device/arena.h"
#include "octet/device/device.h"
#include "octet/parallel/groups.h"
#include "octet/parallel/parameter.h"

namespace octet::parallel {

// What a pass needs of a unit. With `backward` on, its gradients are to be written.
enum class Use : std::uint8_t {
  forward,   // weights as the forward products read them
  backward,  // as dgrad reads them
  both,
  gradients,  // no weights
};
constexpr bool reads_forward(Use use) { return use == Use::forward || use == Use::both; }
constexpr bool reads_backward(Use use) { return use == Use::backward || use == Use::both; }
constexpr bool writes_gradients(Use use) { return use != Use::forward; }

struct Need {
  int unit = -1;  // -1: none
  Use use = Use::forward;
};

class Units {
 public:
  // Of a store that is materialised over these groups and outlives this, as do stream and groups. Takes the memory that units
  // lie in while they are held. `edges`: units that are held before and after the others and never together; the rest are
  // held one at a time, the next one being gathered.
  Units(Stream& compute, ParameterStore& store, const Groups& groups, const Layout& layout, const std::vector<int>& edges);

  // A step of `micro_batches` passes with gradients begins; all gradients are nothing.
  void begin_step(std::int64_t micro_batches);
  // One of them begins.
  void begin_micro_batch();
  // Whether another one follows with the same weights.
  bool more_follow() const { return seen_ < micro_batches_; }

  // Holds `now` during body(); `next`, which is held after it, is gathered meanwhile. Gradients are reduced afterwards: when the
  // next unit's body says so, or at the latest when that is released; what no body has written (of an expert that no token came
  // to) is zero. Units may be held within one another.
  void with(Arena& scratch, Need now, Need next, const std::function<void()>& body);
  // Gathers it behind what the computation has enqueued so far, which is to have the links for itself.
  void gather_behind(Arena& scratch, Need need);
  // A good moment for the reduction of the unit before: what is enqueued next leaves it room. The kernels of a reduction hold
  // multiprocessors, for which a product would wait that counts on all of them; attention has many more blocks of threads than
  // there are, and loses what is held and no more.
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
  // Memory that units lie in, one at a time; without memory of its own where the store keeps the unit for ever.
  struct Slot {
    Buffer memory;
    int unit = -1;
    bool forward = false, backward = false;  // weights: what of them is there or on its way
    bool held = false;
    std::unique_ptr<Event> ready, free;
  };
  struct Slots {
    std::vector<Slot> slots;
    std::vector<std::size_t> index;  // of each unit
    Slot& of(int unit) { return slots[index[static_cast<std::size_t>(unit)]]; }
  };
  enum class Keep : std::uint8_t { all, held };
  template <class Bytes>
  Slots make_slots(Keep keep, const std::vector<int>& edges, MemoryCategory category, Bytes bytes_of_unit);

  int parts() const { return store_.parts(); }
  Gradients gradients() const { return parts() > 1 ? layout_.gradients : Gradients::whole; }
  // What this rank holds of a unit, and what of that lies in parts, those of one group together.
  const std::vector<Parameter*>& unit(int index) const { return units_[static_cast<std::size_t>(index)]; }
  const std::vector<Parameter*>& cut(int index) const { return cut_[static_cast<std::size_t>(index)]; }
  UnitRange first_units() const;
  void renew(Arena& scratch, UnitRange units);
  void gather(Arena& scratch, Need need);
  void hold(Arena& scratch, Need need);
  void release(Arena& scratch, Need need);
  void finish_stale_gradients(int unit);
  void reduce_later(Arena& scratch, int unit);
  void reduce_released(Arena& scratch, const Event& after);
  void reduce(Arena& scratch, int unit);
  void reduce_over_shards(Arena& scratch, int unit);
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
  Slots weights_, gradients_;
  UnitRange first_;
  std::vector<std::unique_ptr<Event>> reduced_;  // of each unit: the end of its last reduction
  std::vector<char> fresh_;                      // of each unit: no micro-batch of this step has reduced its gradient
  Buffer cast_;                                  // a unit's gradients in layout.reduce, where they are of another dtype
  int released_ = -1;                            // a unit whose gradient is complete and not yet reduced, ...
  std::unique_ptr<Event> complete_;              // ... after this
  std::int64_t micro_batches_ = 1, seen_ = 0;
};

}  // namespace octet::parallel
