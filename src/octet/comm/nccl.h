// Collectives between GPUs: NCCL. Every operation is enqueued on the stream of its queue and the host goes on, except that the
// first one of a kind waits for the peers to come to it, as NCCL makes its connections then. Sizes of zero send nothing.
//   max     on the bits of F32 as unsigned integers, whose order is that of the numbers from +0 to inf, with every NaN above
//   batch   one launch
// A rank that is lost, or an operation that does not end within the timeout, aborts the group: what waits for a queue wakes up,
// and the next operation, or check(), throws Error{peer}.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "octet/comm/group.h"

namespace octet::comm {

struct NcclOptions {
  std::string name;  // of the group; the same in all its ranks, and no other group's
  int rank = 0, size = 1;
  double timeout_s = 60;  // of connecting, and without an operation that ends while some are under way
  // A store that all ranks share: `get` waits for the key, or throws.
  std::function<void(const std::string& key, std::string_view value)> set;
  std::function<std::string(const std::string& key)> get;
  // Both may be absent; they are called from any thread until the group is gone.
  std::function<std::string()> blame;  // who or what an error is to name, asked when an operation failed
  std::function<std::string()> lost;   // a sentence once a rank is known to be gone, else ""; asked often, must not wait
};

// For a device of kind cuda, in the thread that made it. Returns when all ranks are connected; throws Error{peer} when they are
// not within the timeout, Error{config} where this build has no CUDA backend. The device outlives the group.
std::unique_ptr<Group> make_nccl_group(Device& device, const NcclOptions& options);

// "NCCL 2.28.9"; "" where this build has no CUDA backend.
std::string nccl_version();

}  // namespace octet::comm
