// Collectives between processes, or threads, on CPUs: Gloo over TCP.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "octet/comm/group.h"

namespace octet::comm {

struct GlooOptions {
  std::string name;  // of the group; the same in all its ranks, and no other group's
  int rank = 0, size = 1;
  std::string address = "127.0.0.1";  // of this host, for the others
  double timeout_s = 60;              // of an operation
  // A store that all ranks share: `get` waits for the key, or throws.
  std::function<void(const std::string& key, std::string_view value)> set;
  std::function<std::string(const std::string& key)> get;
  std::function<std::string()> blame;  // who or what an error is to name, asked when an operation failed; may be absent
};

// Returns when all ranks are connected; from then on the process ignores SIGPIPE. Throws Error{peer} when they are not within the timeout.
std::unique_ptr<Group> make_gloo_group(const GlooOptions& options);

}  // namespace octet::comm
