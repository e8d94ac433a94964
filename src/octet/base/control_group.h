// The limits of this process's control groups, versions 1 and 2. A container's limits are limits of control groups.
//
// A limit that was read and a limit that does not exist are different from a limit that could not be read: `unread` names each file
// that could not be read, and why. `root` is the root of the file system; tests pass a made-up tree.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace octet {

struct GroupMemory {
  std::optional<std::int64_t> limit_bytes;  // the smallest limit of the process's group and of the groups above it; empty: none
  std::optional<std::int64_t> free_bytes;   // the least that a group with a limit has left; cached files count as free
  std::string limited_by;                   // folder of the group with the least left
  std::vector<std::string> unread;          // "PATH: reason"
};
GroupMemory group_memory(const std::filesystem::path& root = "/");

// Returns how many processes of this process's group the kernel has killed because memory ran out, since the group was made.
// Empty if unknown, for example on a machine without control groups for memory.
std::optional<std::int64_t> memory_kills(const std::filesystem::path& root = "/");

struct GroupCores {
  std::optional<double> quota;  // processors' worth of time, the smallest of all groups; empty: no limit
  std::vector<std::string> unread;
};
GroupCores group_cores(const std::filesystem::path& root = "/");

// The memory that this process can use: the machine's memory, or what its control groups leave of it. Empty if unknown.
struct HostMemory {
  std::optional<std::int64_t> total_bytes, available_bytes;
  std::string limited_by;  // folder of the control group that sets `available_bytes`; "": the machine does
  std::vector<std::string> unread;
};
HostMemory host_memory(const std::filesystem::path& root = "/");

}  // namespace octet
