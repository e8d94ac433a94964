// Asynchronous copies from global to shared memory (cp.async of PTX). A thread starts copies, ends a group of them, and later
// waits for the group. Only the thread that waited may then read the data; other threads need a barrier, too.
#pragma once

#include <cstdint>

namespace octet::kernels::cuda {

// Starts a copy of 16 bytes that bypasses the first-level cache. Both addresses are multiples of 16.
template <class Shared, class Global>
__device__ void copy_async(Shared* to, const Global* from) {
  static_assert(sizeof(Shared) == 16);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(static_cast<unsigned>(__cvta_generic_to_shared(to))), "l"(from)
               : "memory");
}
// Ends the group of copies that this thread has started since the last call. The group may be empty.
__device__ inline void end_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most kPending groups of this thread's copies are in flight.
template <int kPending>
__device__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace octet::kernels::cuda
