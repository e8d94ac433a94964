// How the ranks of a group connect, and the library that transfers their data: NCCL between GPUs, Gloo between CPUs.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "octet/comm/group.h"

namespace octet::comm {

struct GroupOptions {
  std::string name;  // the same on all ranks of the group; unique among groups
  int rank = 0, size = 1;
  std::string address = "127.0.0.1";  // of this machine; Gloo connects there
  double timeout_s = 60;              // for connecting, and for each operation
  // A key-value store that all ranks share. `get` waits for the key or throws. The key goes after `reads` calls of `get`. So
  // nothing of a group remains in the store once it is connected.
  std::function<void(const std::string& key, std::string_view value, int reads)> set;
  std::function<std::string(const std::string& key)> get;
  // Both may be empty. They are called from any thread as long as the group exists.
  std::function<std::string()> blame = {};  // what an error names as the cause; called after an operation failed
  // Returns a sentence that names the lost ranks, or "" if none is known to be lost. Called about ten times a second; must not
  // block. A loss ends all operations that wait for other ranks.
  std::function<std::string()> lost = {};
  // Returns a sentence that names links between this rank and others of the group which are broken, or "". May take seconds.
  // Called while the ranks connect, if that takes long.
  std::function<std::string()> broken_links = {};
};

// The cause of a failed operation, for its error message: what blame() says, followed by the lost ranks, or by `reason` if no
// rank is known to be lost. May take as long as blame() does.
std::string cause_of(const GroupOptions& options, const std::string& reason);

// gloo.h and nccl.h state when this returns and what it throws. The device must outlive the group.
std::unique_ptr<Group> make_group(Device& device, const GroupOptions& options);

}  // namespace octet::comm
