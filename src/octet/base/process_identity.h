// Tells one process from all others, on this machine and on others that share its files, and whether it still runs.
#pragma once

#include <cstdint>
#include <string>

namespace octet {

struct ProcessIdentity {
  std::string host;           // the machine's name
  std::string machine;        // a hash of /etc/machine-id, or "" if there is none: names alone may be the same on two machines
  std::string boot;           // a random number that the kernel draws at each start
  std::string pid_namespace;  // process ids are unique within it
  std::int64_t pid = 0;
  std::int64_t start_ticks = 0;  // when the process began, since the start of the kernel: process ids are used again

  static ProcessIdentity mine();
  bool operator==(const ProcessIdentity&) const = default;
};

// Whether a process still runs, as far as this process can see. `unknown` if it is on another machine or in another process
// namespace, such as another container.
enum class Fate : std::uint8_t { runs, ended, unknown };
Fate fate_of(const ProcessIdentity& process);

}  // namespace octet
