// Collectives between GPUs: NCCL. Every operation is enqueued on the stream of its queue and the host goes on, except that the
// first one of a kind waits for the peers to come to it, as NCCL makes its connections then. Sizes of zero send nothing.
//   max     on the bits of F32 as unsigned integers, whose order is that of the numbers from +0 to inf, with every NaN above
//   batch   one launch
// A rank that is lost, or an operation that does not end within the timeout, aborts the group: what waits for a queue wakes up,
// and the next operation, or check(), throws Error{peer}.
#pragma once

#include <memory>
#include <string>

#include "octet/comm/transport.h"

namespace octet::comm {

// For a device of kind cuda, in the thread that made it. Returns when all ranks are connected; throws Error{peer} when they are
// not within the timeout (which also ends what is under way while no operation ends), Error{config} where this build has no CUDA
// backend.
std::unique_ptr<Group> make_nccl_group(Device& device, const GroupOptions& options);

// "NCCL 2.28.9"; "" where this build has no CUDA backend.
std::string nccl_version();

}  // namespace octet::comm
