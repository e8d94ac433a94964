// Shared memory of all ranks of a group, mapped into this process. This rank reads from it with copy engines, which take no
// multiprocessor from the computation. A collective's kernel would occupy multiprocessors, and a GEMM, which runs one thread
// block per multiprocessor, would have to wait for them.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <vector>

#include "octet/comm/group.h"

namespace octet::comm {

class PeerMemory {
 public:
  // All ranks call together, each with `bytes` bytes of memory of its Device.
  PeerMemory(Stream& stream, Arena& scratch, Group& group, void* memory, std::size_t bytes);
  ~PeerMemory();
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  // Whether every rank can read the memory of all ranks: they are processes of one machine whose GPUs can access each other. The
  // result is the same on every rank.
  bool reachable() const { return reachable_; }
  // Whether x lies in this rank's shared memory.
  bool holds(const Tensor& x) const;
  // Perform an operation whose x lies in this memory, without the help of other ranks.
  void fetch(cudaStream_t native, const AllGather& op) const;
  void fetch(cudaStream_t native, const Fetch& op) const;

 private:
  struct Peer {
    std::byte* memory = nullptr;
    bool opened = false;  // memory of another process, to be closed
  };
  void close() noexcept;
  // Calls visit(rank, x as that rank has it) for all ranks, starting
  // with the next rank, so that not all ranks read from the same one.
  template <class Visit>
  void each_peer(const Tensor& x, Visit&& visit) const;

  int rank_;
  std::byte* own_;
  std::size_t bytes_;
  std::vector<Peer> peers_;
  bool reachable_ = false;
};

}  // namespace octet::comm
