// Groups of ranks and their collectives. All ranks of a group call the same operations in the
// same order with the same sizes. An operation takes its place in the order of the stream. Tensors
// are contiguous and are treated as flat arrays; n is the number of elements of one shard.
//   all_gather      y [size * n] = x of rank 0, x of rank 1, ...
//   reduce_scatter  y [n] = reduction over the ranks of shard `rank` of their x [size * n]
//   all_reduce      x [n] = reduction over the ranks of x
//   all_to_all      y = shard `rank` of rank 0's x, of rank 1's x, ...
//   broadcast       x = x of rank `root`
//   send, receive   y of a receive = x of the matching send: the n-th receive from a rank matches its n-th send to this rank
//   fetch           y = x of rank `from`, read from shared memory (see share()) without that rank's help
// Only the two ranks of a message call send and receive. On the CPU, they end when somebody waits for a later event of the
// stream.
// On the CPU, a reduction combines the ranks in their order; BF16 is reduced in FP32 and rounded once. Its bits depend only on
// the size of the group. On GPUs, NCCL chooses the order and rounds BF16 at every hop; all ranks of an all_reduce get the same
// bits. After a failure or a timeout, the group can no longer be used and operations throw Error{peer} that names the operation
// and the cause. On GPUs an operation is only enqueued when it returns; if it fails later, a later operation or check() throws.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "octet/device/arena.h"
#include "octet/device/device.h"
#include "octet/telemetry/rank_page.h"
#include "octet/tensor/tensor.h"

namespace octet::comm {

// `max` propagates NaN. NCCL compares F32 values as unsigned integers, so
// on GPUs the dtype must be F32 and inputs must be NaN, +0 or positive.
enum class Reduction : std::uint8_t { sum, max };

struct AllGather {
  Tensor x;  // [n], any dtype; may be shard `rank` of y
  Tensor y;  // [size * n], overwritten
};
struct ReduceScatter {
  Tensor x;  // [size * n] BF16, F32 or F64
  Tensor y;  // [n] of x's dtype, overwritten; may be shard `rank` of x
  Reduction reduction = Reduction::sum;
};
struct AllReduce {
  Tensor x;  // BF16, F32 or F64; overwritten
  Reduction reduction = Reduction::sum;
};
struct AllToAll {
  Tensor x, y;                                         // any dtype; y is overwritten and must not be x
  std::vector<std::int64_t> sent = {}, received = {};  // elements for and from each rank; empty: equal shards
};
struct Fetch {
  Tensor x;      // [m, n] any dtype: where it would lie in this rank's shared memory (see reaches()); rows may be strided
  Tensor y;      // [m, n]; overwritten; rows may be strided
  int from = 0;  // may be this rank
};
struct Send {
  Tensor x;  // any dtype; must not change before the send has ended
  int to = 0;
};
struct Receive {
  Tensor y;  // overwritten
  int from = 0;
};
struct Broadcast {
  Tensor x;  // any dtype; overwritten on all ranks except root
  int root = 0;
};

// What this rank has sent. The bytes are those of the algorithms that send the fewest: (size - 1) n elements for all_gather and
// reduce_scatter, 2 (size - 1) / size of x for all_reduce, the elements for other ranks for all_to_all and send, the elements
// read from other ranks for fetch, and (size - 1) n at the root for broadcast.
struct Traffic {
  double bytes = 0;
  std::int64_t messages = 0;  // number of operations
};

class Group {
 public:
  Group(std::string name, int rank, int size);
  virtual ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  const std::string& name() const { return name_; }
  int rank() const { return rank_; }
  int size() const { return size_; }
  // All ranks, from the one after this rank to this rank itself. If ranks read from each other in this order, no two read from
  // the same rank at once.
  std::vector<int> ring() const;
  const Traffic& traffic() const { return traffic_; }

  void all_gather(Stream& stream, Arena& scratch, const AllGather& op);
  void reduce_scatter(Stream& stream, Arena& scratch, const ReduceScatter& op);
  void all_reduce(Stream& stream, Arena& scratch, const AllReduce& op);
  void all_to_all(Stream& stream, Arena& scratch, const AllToAll& op);
  void broadcast(Stream& stream, const Broadcast& op);
  void fetch(Stream& stream, const Fetch& op);
  void send(Stream& stream, const Send& op);
  void receive(Stream& stream, const Receive& op);
  // Also blocks the host until all ranks have reached the barrier and the stream is empty.
  void barrier(Stream& stream);

  // Lets the other ranks read this memory. All ranks call together, with the same size and layout. Each call
  // replaces the memory of the call before. From then on, fetch() works on this memory. NCCL groups within one
  // machine fetch with copy engines, in parallel with the computation. Therefore x must be complete on all ranks
  // before any rank fetches it, and must stay unchanged until all ranks have it. Separate writing and fetching by
  // a fence(), or by any collective in which every rank takes part, on the fetching stream or on one that it waits for.
  // A message between two ranks also travels in this way if x lies in this memory. y must then be the same place on its rank.
  virtual void share(Stream& stream, Arena& scratch, void* memory, std::size_t bytes);
  // Whether fetch() can read x on every rank: all ranks share memory that contains x. The same on all ranks.
  virtual bool reaches(const Tensor&) const { return false; }
  // Ends the sharing. All ranks call together and wait for each other, before any rank frees its shared memory.
  virtual void unshare(Stream&) {}
  // Orders accesses to shared memory: work that any rank enqueued before the fence precedes work that any rank enqueues after
  // it. The host does not wait. All fences of a group go to the same stream.
  void fence(Stream& stream);

  // Throws Error{peer} if the group has failed. Call it after synchronising a stream and before using what its collectives wrote:
  // when a group fails, a GPU's stream also becomes empty.
  virtual void check() {}

 protected:
  // Called only for groups of several ranks, on devices that compute. The operands are checked and the traffic is counted.
  // `parts` has room for size * n elements of x if the transport needs it.
  virtual void run(Stream& stream, const AllGather& op) = 0;
  virtual void run(Stream& stream, const ReduceScatter& op, const Tensor& parts) = 0;
  virtual void run(Stream& stream, const AllReduce& op, const Tensor& parts) = 0;
  virtual void run(Stream& stream, const AllToAll& op) = 0;
  virtual void run(Stream& stream, const Broadcast& op) = 0;
  virtual void run(Stream&, const Fetch&) { fail(ExitCode::internal, "group ", name(), ": no memory is shared"); }
  virtual void run(Stream& stream, const Send& op) = 0;
  virtual void run(Stream& stream, const Receive& op) = 0;
  virtual void run_barrier(Stream& stream) = 0;
  virtual void run_fence(Stream&) {}
  // Shows this group on the rank's page, which monitors read. Groups that exchange data call it when they are made, because a
  // rank that hangs before its first exchange is also behind the others. Groups that only count must not call it: an engine
  // that plans memory would take over the page of the group that exchanges, and clear it.
  void take_page();
  // Shows on the page that the host begins or ends to wait for other ranks.
  void show_wait(bool waits) {
    if (page_) page_->waits.store(waits ? 1 : 0, std::memory_order_relaxed);
  }
  // These implement Batch.
  virtual void begin_batch() {}
  virtual void end_batch() noexcept {}
  virtual void drop_batch() noexcept {}

 private:
  friend class Batch;
  // Counts the operation. Returns whether there is something to send, that is, several ranks and a device that computes.
  bool begin(Stream& stream, telemetry::Exchange op, double bytes);
  // Calls run(stream, operands...), on the CPU in the order of the stream, and counts it as a wait of the stream.
  template <class... Operands>
  void exchange(Stream& stream, const Operands&... operands);
  Tensor parts_for(Arena& scratch, Stream& stream, const Tensor& x) const;

  std::string name_;
  int rank_, size_;
  Traffic traffic_;
  telemetry::GroupPage* page_ = nullptr;  // what others see of this group; null: it is not shown
  int batched_ = -1;  // operations in the open batch; -1 if none is open
};

// Combines a group's operations on one stream, except barriers, into one launch if the transport has launches (NCCL). The
// all-gathers of a layer then cost the latency of one. The operations must not depend on each other. They may all run at the end
// of the batch, so their memory must not be touched before. The destructor does not throw: the group's next operation or check()
// throws instead. If the scope ends with an exception, nothing is launched. Batches of a group must not be nested.
class Batch {
 public:
  Batch(Group& group, Stream& stream);
  ~Batch();
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

 private:
  Group& group_;
  Stream& stream_;
  int exceptions_;
};

// Makes a group that sends nothing: a group of one rank, whose collectives copy, or any rank of any group on the meta device,
// which only counts. If `reach` is true, fetches from shared memory are counted as if all ranks could read it.
std::unique_ptr<Group> make_silent_group(std::string name, int rank = 0, int size = 1, bool reach = false);

}  // namespace octet::comm
