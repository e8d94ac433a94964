// The memory that each rank of a group shows to the others, mapped here, so that this rank can fetch from it by copy engines: no
// multiprocessor is taken from the computation, whose products, a block of threads to each multiprocessor, would wait for one
// that a collective's kernel holds.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <vector>

#include "octet/comm/group.h"

namespace octet::comm {

class PeerMemory {
 public:
  // All ranks call together, each with memory of a Device of so many bytes.
  PeerMemory(Queue& queue, Arena& scratch, Group& group, void* memory, std::size_t bytes);
  ~PeerMemory();
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  // Whether all ranks reach the memory of all: they are processes of one machine, whose GPUs reach each other. The same on every
  // rank.
  bool reachable() const { return reachable_; }
  bool holds(const Tensor& x) const;
  // Ops whose x lies in this memory, without anybody's help.
  void fetch(cudaStream_t stream, const AllGather& op) const;
  void fetch(cudaStream_t stream, const Fetch& op) const;

 private:
  struct Peer {
    std::byte* memory = nullptr;
    bool opened = false;  // of another process, to be closed
  };
  void close() noexcept;
  // Visits the ranks, the next one first, so that not all fetch from one: visit(rank, x as that rank has it).
  template <class Visit>
  void each_peer(const Tensor& x, Visit&& visit) const;

  int rank_;
  std::byte* own_;
  std::size_t bytes_;
  std::vector<Peer> peers_;
  bool reachable_ = false;
};

}  // namespace octet::comm
