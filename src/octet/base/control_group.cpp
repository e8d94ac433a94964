#include "octet/base/control_group.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <sstream>
#include <string_view>

#include "octet/base/require.h"

namespace octet {
namespace fs = std::filesystem;
namespace {

// Version 1 writes about 2^63 for "no limit".
constexpr std::int64_t kNoLimit = std::int64_t{1} << 62;

using Unread = std::vector<std::string>;

void add_unread(Unread& unread, const fs::path& path, std::string_view reason) {
  unread.push_back(concat(path.string(), ": ", reason));
}

struct Text {
  std::string text;
  int error = 0;  // errno; 0: read
};

// Reads a file of /proc or /sys. Its size is not known before it is read, so it cannot be mapped.
Text read_text(const fs::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return {.text = "", .error = errno};
  Text result;
  char buffer[4096];
  for (;;) {
    const ssize_t n = ::read(fd, buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) result.error = errno;
    if (n <= 0) break;
    result.text.append(buffer, static_cast<std::size_t>(n));
  }
  ::close(fd);
  return result;
}

// Returns the text of a file. If it cannot be read, returns nothing and adds a line to `unread`.
std::optional<std::string> text_of(const fs::path& path, Unread& unread) {
  Text file = read_text(path);
  if (file.error == 0) return std::move(file.text);
  add_unread(unread, path, std::strerror(file.error));
  return std::nullopt;
}

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream words(text);
  std::vector<std::string> list;
  for (std::string word; words >> word;) list.push_back(word);
  return list;
}

std::optional<std::int64_t> number_of(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// Returns the number that a file consists of. If there is none, returns nothing and adds a line to `unread`.
std::optional<std::int64_t> number_in(const fs::path& path, Unread& unread) {
  const std::optional<std::string> text = text_of(path, unread);
  if (!text) return std::nullopt;
  const std::vector<std::string> words = words_of(*text);
  const std::optional<std::int64_t> number = words.size() == 1 ? number_of(words[0]) : std::nullopt;
  if (!number) add_unread(unread, path, "not a number");
  return number;
}

bool lists(const std::string& comma_list, std::string_view name) {
  std::istringstream names(comma_list);
  for (std::string one; std::getline(names, one, ',');) {
    if (one == name) return true;
  }
  return false;
}

// The folders of the groups that limit this process: its own group, and all groups above it up to the mounted root.
struct Groups {
  int version = 2;
  std::vector<fs::path> folders;
};

// Returns the part of `path` below `top`: "b" for "/a/b" and "/a". Returns nothing if `path` is not below `top`.
std::optional<fs::path> path_below(const fs::path& path, const fs::path& top) {
  const fs::path relative = path.lexically_relative(top);
  if (relative.empty() || *relative.begin() == "..") return std::nullopt;
  return relative == "." ? fs::path() : relative;
}

struct Membership {
  int version = 0;  // 0: the kernel has no such controller
  fs::path path;
};

// Lines are "4:cpu,memory:/group" of version 1 and "0::/group" of version 2.
Membership membership_of(const std::string& text, std::string_view controller) {
  Membership found;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string names = line.substr(first + 1, second - first - 1);
    if (lists(names, controller)) return {.version = 1, .path = line.substr(second + 1)};
    if (names.empty()) found = {.version = 2, .path = line.substr(second + 1)};
  }
  return found;
}

// Without a controller there is no limit, and no folder.
Groups groups_of(std::string_view controller, const fs::path& root, Unread& unread) {
  const std::optional<std::string> memberships = text_of(root / "proc/self/cgroup", unread);
  const std::optional<std::string> mounts = text_of(root / "proc/self/mountinfo", unread);
  if (!memberships || !mounts) return {};
  const Membership member = membership_of(*memberships, controller);
  if (member.version == 0) return {};

  // "31 23 0:28 ROOT MOUNT-POINT options ... - TYPE SOURCE super,options"
  std::istringstream lines(*mounts);
  for (std::string line; std::getline(lines, line);) {
    const std::vector<std::string> words = words_of(line);
    const auto dash = std::find(words.begin(), words.end(), "-");
    if (words.size() < 5 || words.end() - dash < 4) continue;
    const std::string &type = dash[1], &options = dash[3];
    if (member.version == 1 ? type != "cgroup" || !lists(options, controller) : type != "cgroup2") continue;
    const std::optional<fs::path> below = path_below(member.path, words[3]);
    if (!below) continue;
    const fs::path top = root / fs::path(words[4]).relative_path();
    Groups groups{.version = member.version, .folders = {}};
    for (fs::path folder = *below;; folder = folder.parent_path()) {
      groups.folders.push_back(folder.empty() ? top : top / folder);
      if (folder.empty()) break;
    }
    std::error_code error;
    if (!fs::is_directory(groups.folders.front(), error)) {
      add_unread(unread, groups.folders.front(), error ? error.message() : "not a folder");
      std::erase_if(groups.folders, [&](const fs::path& folder) { return !fs::is_directory(folder, error); });
    }
    return groups;
  }
  add_unread(unread, root / "proc/self/mountinfo",
             concat("control group ", member.path.string(), " (", controller, ") is not mounted here"));
  return {};
}

// Returns the bytes that a group may use, or nothing if it has no limit.
std::optional<std::int64_t> limit_of(const fs::path& folder, int version, Unread& unread) {
  if (version == 2) {
    const fs::path path = folder / "memory.max";
    const Text file = read_text(path);
    // The root has no such file, nor does a group whose parent does not pass the controller on.
    if (file.error == ENOENT || (file.error == 0 && words_of(file.text) == std::vector<std::string>{"max"})) return std::nullopt;
    return number_in(path, unread);
  }
  const std::optional<std::int64_t> limit = number_in(folder / "memory.limit_in_bytes", unread);
  return limit && *limit < kNoLimit ? limit : std::nullopt;
}

// Returns the bytes of file contents that the kernel caches for this group and drops when it needs the memory.
std::int64_t cached_bytes(const fs::path& folder, int version, Unread& unread) {
  const std::optional<std::string> stat = text_of(folder / "memory.stat", unread);
  if (!stat) return 0;
  std::int64_t bytes = 0;
  std::istringstream lines(*stat);
  std::string key;
  for (std::int64_t value = 0; lines >> key >> value;) {
    const std::string_view name = version == 2 ? key : key.rfind("total_", 0) == 0 ? std::string_view(key).substr(6) : "";
    if (name == "inactive_file" || name == "active_file") bytes += value;
  }
  return bytes;
}

// Returns the number after `key` in lines such as "oom_kill 3".
std::optional<std::int64_t> value_in(const std::string& text, const std::string& key) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::vector<std::string> words = words_of(line);
    if (words.size() == 2 && words[0] == key) return number_of(words[1]);
  }
  return std::nullopt;
}

// Returns a value of /proc/meminfo, such as "1234 kB", in bytes.
std::optional<std::int64_t> meminfo_value(const std::string& text, const std::string& key) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::vector<std::string> words = words_of(line);
    if (words.size() == 3 && words[0] == key + ":" && words[2] == "kB") {
      const std::optional<std::int64_t> kib = number_of(words[1]);
      return kib ? std::optional(*kib * 1024) : std::nullopt;
    }
  }
  return std::nullopt;
}

}  // namespace

GroupMemory group_memory(const fs::path& root) {
  GroupMemory memory;
  const Groups groups = groups_of("memory", root, memory.unread);
  for (const fs::path& folder : groups.folders) {
    const std::optional<std::int64_t> limit = limit_of(folder, groups.version, memory.unread);
    if (!limit) continue;
    const std::optional<std::int64_t> used =
        number_in(folder / (groups.version == 2 ? "memory.current" : "memory.usage_in_bytes"), memory.unread);
    // If the usage is unknown, the limit is the best known bound of the free memory.
    const std::int64_t left = used ? *limit - *used + cached_bytes(folder, groups.version, memory.unread) : *limit;
    const std::int64_t free = std::clamp<std::int64_t>(left, 0, *limit);
    memory.limit_bytes = std::min(*limit, memory.limit_bytes.value_or(*limit));
    if (!memory.free_bytes || free < *memory.free_bytes) {
      memory.free_bytes = free;
      memory.limited_by = folder.string();
    }
  }
  return memory;
}

std::optional<std::int64_t> memory_kills(const fs::path& root) {
  Unread unread;
  const Groups groups = groups_of("memory", root, unread);
  if (groups.folders.empty()) return std::nullopt;
  const std::optional<std::string> events =
      text_of(groups.folders.front() / (groups.version == 2 ? "memory.events" : "memory.oom_control"), unread);
  return events ? value_in(*events, "oom_kill") : std::nullopt;
}

GroupCores group_cores(const fs::path& root) {
  GroupCores cores;
  const Groups groups = groups_of("cpu", root, cores.unread);
  for (const fs::path& folder : groups.folders) {
    // "max 100000" or "150000 100000"; -1 in version 1. Root groups and kernels without quotas have no such file.
    const fs::path path = folder / (groups.version == 2 ? "cpu.max" : "cpu.cfs_quota_us");
    if (read_text(path).error == ENOENT) continue;
    const std::optional<std::string> text = text_of(path, cores.unread);
    if (!text) continue;
    std::vector<std::string> words = words_of(*text);
    if (groups.version == 1) {
      const std::optional<std::string> period = text_of(folder / "cpu.cfs_period_us", cores.unread);
      if (!period) continue;
      words.push_back(words_of(*period).empty() ? "" : words_of(*period)[0]);
    }
    if (words.size() == 2 && (words[0] == "max" || words[0] == "-1")) continue;
    const std::optional<std::int64_t> quota = words.size() == 2 ? number_of(words[0]) : std::nullopt,
                                      period = words.size() == 2 ? number_of(words[1]) : std::nullopt;
    if (!quota || !period || *period <= 0) {
      add_unread(cores.unread, path, "not a quota and a period");
      continue;
    }
    const double share = static_cast<double>(*quota) / static_cast<double>(*period);
    cores.quota = std::min(share, cores.quota.value_or(share));
  }
  return cores;
}

HostMemory host_memory(const fs::path& root) {
  GroupMemory group = group_memory(root);
  HostMemory memory{.total_bytes = {}, .available_bytes = {}, .limited_by = "", .unread = std::move(group.unread)};
  const fs::path meminfo = root / "proc/meminfo";
  if (const std::optional<std::string> text = text_of(meminfo, memory.unread)) {
    memory.total_bytes = meminfo_value(*text, "MemTotal");
    memory.available_bytes = meminfo_value(*text, "MemAvailable");
    if (!memory.total_bytes || !memory.available_bytes) add_unread(memory.unread, meminfo, "no MemTotal and MemAvailable");
  }
  if (group.limit_bytes && (!memory.total_bytes || *group.limit_bytes < *memory.total_bytes))
    memory.total_bytes = group.limit_bytes;
  if (group.free_bytes && (!memory.available_bytes || *group.free_bytes < *memory.available_bytes)) {
    memory.available_bytes = group.free_bytes;
    memory.limited_by = group.limited_by;
  }
  return memory;
}

}  // namespace octet
