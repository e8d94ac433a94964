// Groups of ranks and their collectives. Every rank of a group calls the same operations in the same order with the same sizes;
// they join the order of the queue. Tensors are contiguous and seen as flat; n is the elements of a rank's part.
//   all_gather      y [size * n] = x of rank 0, x of rank 1, ...
//   reduce_scatter  y [n] = reduction over the ranks of part `rank` of their x [size * n]
//   all_reduce      x [n] = reduction over the ranks of x
//   all_to_all      y = part `rank` of rank 0's x, of rank 1's x, ...
//   broadcast       x = x of rank `root`
//   fetch           y of each rank = x of that rank, without its help: where it has shown the others its memory
// On the CPU a reduction goes over the ranks in their order, in FP32 for BF16 and rounded once, so that its bits depend on the
// size of the group alone. On GPUs the order is NCCL's and BF16 is rounded at every hop; all ranks of an all_reduce get the same
// bits. A failure or a timeout ends the group: Error{peer} that names the operation and who is to blame. On GPUs an operation has
// only been enqueued when it returns, so a failure in it is thrown by a later one, or by check().
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "octet/device/arena.h"
#include "octet/device/device.h"
#include "octet/tensor/tensor.h"

namespace octet::comm {

// max: NaN wins, as in an amax. Between GPUs it is of F32 alone, of numbers that are not negative and not -0, or NaN.
enum class Reduction : std::uint8_t { sum, max };

struct AllGather {
  Tensor x;  // [n], any dtype; may be part `rank` of y
  Tensor y;  // [size * n], overwritten
};
struct ReduceScatter {
  Tensor x;  // [size * n] BF16, F32 or F64
  Tensor y;  // [n] of x's dtype, overwritten; may be part `rank` of x
  Reduction reduction = Reduction::sum;
};
struct AllReduce {
  Tensor x;  // BF16, F32 or F64; overwritten
  Reduction reduction = Reduction::sum;
};
struct AllToAll {
  Tensor x, y;                                         // any dtype; y is overwritten and is not x
  std::vector<std::int64_t> sent = {}, received = {};  // elements to and from each rank; empty: equal parts
};
struct Fetch {
  Tensor x;               // [m, n] any dtype, of memory that reaches(); rows may be strided
  std::vector<Tensor> y;  // of every rank, this one too, [m, n]: overwritten; rows may be strided
};
struct Broadcast {
  Tensor x;  // any dtype; overwritten on all ranks but root
  int root = 0;
};

// What has left this rank, counted as the algorithms that send least do: (size - 1) n for all_gather, fetch and reduce_scatter,
// twice (size - 1) / size of all_reduce's x, what all_to_all sends to others, (size - 1) n from broadcast's root.
struct Traffic {
  double bytes = 0;
  std::int64_t messages = 0;  // operations
};

class Group {
 public:
  Group(std::string name, int rank, int size);
  virtual ~Group() = default;
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  const std::string& name() const { return name_; }
  int rank() const { return rank_; }
  int size() const { return size_; }
  const Traffic& traffic() const { return traffic_; }

  void all_gather(Queue& queue, Arena& scratch, const AllGather& op);
  void reduce_scatter(Queue& queue, Arena& scratch, const ReduceScatter& op);
  void all_reduce(Queue& queue, Arena& scratch, const AllReduce& op);
  void all_to_all(Queue& queue, Arena& scratch, const AllToAll& op);
  void broadcast(Queue& queue, const Broadcast& op);
  void fetch(Queue& queue, const Fetch& op);
  // The host waits, too.
  void barrier(Queue& queue);

  // Shows the others memory of this rank, of the same size and layout on all ranks, which call together. An all_gather whose x
  // lies in it then may fetch the parts of others without their help (NCCL between GPUs of one machine: by copy engines, beside
  // the computation), as fetch() does. So such an x must be complete on all ranks before any of them gathers it, and stay as it
  // is until all have it: between the two stands a fence(), or any collective that every rank has a share in, on the queue that
  // gathers or one that it waits for. The next call replaces the memory.
  virtual void share(Queue& queue, Arena& scratch, void* memory, std::size_t bytes);
  // Whether fetch() can have x of every rank.
  virtual bool reaches(const Tensor&) const { return false; }
  // Nothing is shared any more; all ranks call together, and wait for each other, before any of them frees what it had shown.
  virtual void unshare(Queue&) {}
  // What any rank has enqueued before comes before what any rank enqueues after, as far as shared memory needs it. Nobody waits.
  void fence(Queue& queue) {
    if (size_ > 1 && queue.kind() != DeviceKind::meta) run_fence(queue);
  }

  // Throws Error{peer} if the group has failed. To be called after a queue was synchronised and before what its collectives wrote
  // is kept: a GPU's queue becomes empty, too, when the group fails.
  virtual void check() {}

 protected:
  // For groups of several ranks, on devices that compute; operands have been checked, scratch given out and traffic counted.
  // `parts`: memory for size * n elements of x, where the transport needs it.
  virtual void run(Queue& queue, const AllGather& op) = 0;
  virtual void run(Queue& queue, const ReduceScatter& op, const Tensor& parts) = 0;
  virtual void run(Queue& queue, const AllReduce& op, const Tensor& parts) = 0;
  virtual void run(Queue& queue, const AllToAll& op) = 0;
  virtual void run(Queue& queue, const Broadcast& op) = 0;
  virtual void run(Queue&, const Fetch&) { fail(ExitCode::internal, "group ", name(), ": nobody's memory is shown"); }
  virtual void run_barrier(Queue& queue) = 0;
  virtual void run_fence(Queue&) {}
  // See Batch.
  virtual void begin_batch() {}
  virtual void end_batch() noexcept {}
  virtual void drop_batch() noexcept {}

 private:
  friend class Batch;
  // Whether there is something to send, and to whom.
  bool begin(Queue& queue, const char* op, double bytes);
  // run(queue, operands...), which the queue waits for.
  template <class... Operands>
  void send(Queue& queue, const Operands&... operands);
  Tensor parts_for(Arena& scratch, Queue& queue, const Tensor& x) const;

  std::string name_;
  int rank_, size_;
  Traffic traffic_;
  int batched_ = -1;  // operations of the batch that is open
};

// The operations of a group on one queue between its beginning and its end, barriers excepted, are one launch where the transport
// has launches (NCCL): the all-gathers of a layer cost the latency of one. None may depend on another, all may run at the batch's
// end, and their memory must not be touched before. It never throws at its end: what fails there is thrown by the group's next
// operation or check(). During an exception nothing is launched. Batches of a group do not nest.
class Batch {
 public:
  Batch(Group& group, Queue& queue);
  ~Batch();
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

 private:
  Group& group_;
  Queue& queue_;
  int exceptions_;
};

// Sends nothing: a group of one rank, whose collectives copy, or any rank of any group on the meta device, which only counts.
std::unique_ptr<Group> make_silent_group(std::string name, int rank = 0, int size = 1);

}  // namespace octet::comm
