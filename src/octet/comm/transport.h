// How ranks of a group find each other, and what carries it: the device says, NCCL between GPUs and Gloo between CPUs.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "octet/comm/group.h"

namespace octet::comm {

struct GroupOptions {
  std::string name;  // of the group; the same in all its ranks, and no other group's
  int rank = 0, size = 1;
  double timeout_s = 60;  // of connecting and of an operation
  // A store that all ranks share: `get` waits for the key, or throws.
  std::function<void(const std::string& key, std::string_view value)> set;
  std::function<std::string(const std::string& key)> get;
  // Both may be absent; they are called from any thread until the group is gone.
  std::function<std::string()> blame = {};  // who or what an error is to name, asked when an operation failed
  // A sentence once a rank is known to be gone, else ""; asked often, must not wait. It ends what waits for other ranks.
  std::function<std::string()> lost = {};
};

// Why an operation failed, for its error: what blame() says, with the ranks that are lost; where none is known to be, with
// `reason`, which is else how their loss looks from here. May take as long as blame() does.
std::string cause_of(const GroupOptions& options, const std::string& reason);

// gloo.h and nccl.h say when they return and what they throw. The device outlives the group.
std::unique_ptr<Group> make_group(Device& device, const GroupOptions& options);

}  // namespace octet::comm
