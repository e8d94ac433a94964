// Collectives between GPUs with NCCL. Each operation is enqueued on its stream and returns. Only the first
// operation of a kind waits for the other ranks, because NCCL connects them then. Operations of size zero send nothing.
//   max     compares the bits of F32 as unsigned integers. Their order is that of the numbers from +0 to infinity, with NaNs
//       above.
//   batch   one launch
// If a rank is lost or an operation does not end within the timeout, the group is aborted: hosts that wait for a stream continue,
// and the next operation or check() throws Error{peer}.
#pragma once

#include <memory>
#include <string>

#include "octet/comm/transport.h"

namespace octet::comm {

// `device` is of kind cuda and was made in this thread. Returns when all ranks are connected. Throws Error{peer} if they are not
// within the timeout, and Error{config} if this build has no CUDA backend. The same timeout later applies to the operations: it
// ends the group if operations are pending and none has ended for that long.
std::unique_ptr<Group> make_nccl_group(Device& device, const GroupOptions& options);

// Returns, for example, "NCCL 2.28.9", or "" if this build has no CUDA backend.
std::string nccl_version();

}  // namespace octet::comm
