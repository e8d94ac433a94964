// NVLink multicast, with which NVSwitches add and copy data (NCCL calls it NVLS). NCCL uses it if the driver announces it, and
// cannot connect if the host does not let this process set it up, as in some containers and virtual machines. NCCL takes advice
// only from the environment variable NCCL_NVLS_ENABLE, and reads it once.
#pragma once

#include <functional>

#include "octet/comm/transport.h"

namespace octet::comm {

// Returns whether this process can set up multicast memory on GPU number `device`. Asks the driver for a multicast object, adds
// the GPU to it and releases it. Returns false if this build has no CUDA backend.
bool can_use_multicast(int device);

// Returns on every rank whether `mine` is true on all ranks. All ranks must call it. Uses name, rank, size, set and get of
// `ranks`, and leaves no key in the store.
bool true_on_all(const GroupOptions& ranks, bool mine);

// Sets NCCL_NVLS_ENABLE=0 unless can_use_multicast(device) holds on all ranks. All ranks must call it before they make the first
// group. If the user has set the variable on a rank, that rank neither probes nor changes it.
void probe_multicast(const GroupOptions& ranks, int device);

}  // namespace octet::comm
