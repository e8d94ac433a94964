// Shared memory of all ranks of a group, mapped into this process. This rank reads from it with copy engines, which take no
// multiprocessor from the computation. A collective's kernel would occupy multiprocessors, and a GEMM, which runs one thread
// block per multiprocessor, would have to wait for them.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
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
  // Copies from the memory of another rank without that rank's help.
  void fetch(cudaStream_t native, const Fetch& op) const;
  // As Group::fence(). Each rank writes the number of this fence into the memory of the others, and its stream waits until all
  // have written theirs. No multiprocessor waits.
  void fence(cudaStream_t native);
  // Unmaps the other ranks' memory. Every rank must have done so before any rank frees what it shares.
  void close() noexcept;
  // Ends all enqueued waits of fences, because a rank has failed. What they ordered has no order any more. A late rank may
  // afterwards write a smaller number, so a caller that must be sure calls this again.
  void end_waits() noexcept;

 private:
  struct Peer {
    std::byte* memory = nullptr;
    std::byte* fences = nullptr;
  };

  int rank_;
  std::byte* own_;
  std::size_t bytes_;
  std::byte* own_fences_ = nullptr;       // for each rank, the number of the last fence that it has reached
  std::atomic<std::uint32_t> fence_ = 0;  // the last one that was enqueued
  cudaStream_t ends_waits_ = nullptr;
  std::vector<Peer> peers_;
  bool reachable_ = false;
};

}  // namespace octet::comm
