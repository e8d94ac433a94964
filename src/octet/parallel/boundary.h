// The messages of a pipeline stage: activations [T / t, D] from the previous stage, and their gradients from the next one. Each
// kind has memory for one message that is received and for one that is sent, and a stream in each direction, so that messages
// travel while the stage computes. GPUs of one machine share the memory, so that copy engines move the messages. A received
// message is copied to the memory of its micro-batch (take). Before a message is sent, it is copied out of that memory (give),
// so that the computation can go on. parallel/schedule.h determines the order.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "octet/device/device.h"
#include "octet/parallel/schedule.h"
#include "octet/tensor/tensor.h"

namespace octet::parallel {

class Boundary {
 public:
  // Takes the memory, shares it with the neighbours, adds the streams to `streams`, and sends a first message over each link,
  // because NCCL connects two ranks in their first message, and their hosts wait for each other. All stages call together.
  // `groups` and `streams` must outlive this object.
  Boundary(Device& device, const Groups& groups, Streams& streams, Arena& scratch, DType dtype, const Shape& shape);
  // Ends the sharing. All stages call together, before any of them frees its memory.
  void close();

  // While muted, the stage sends and receives nothing, and each taken message is random, so that a router chooses all experts.
  // A stage can thus run a micro-batch alone.
  void mute(bool muted) { muted_ = muted; }

  // Enqueues a task of a message. `x` is the tensor of the micro-batch that take overwrites and give reads.
  void run(const Task& task, const Tensor& x);

 private:
  // The group, memory and stream of a message in one direction. Absent at the ends of the model.
  struct End {
    comm::Group* group = nullptr;
    Buffer memory;
    std::unique_ptr<Stream> stream;
  };
  const End& end_of(const Task& task) const;

  Stream& compute_;
  std::array<End, kMessages> received_, sent_;
  std::vector<Task> links_;  // a message of each, in the order in which all stages connect
  DType dtype_;
  Shape shape_;
  bool muted_ = false;
};

}  // namespace octet::parallel
