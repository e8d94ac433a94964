#include "octet/base/process_identity.h"

#include <signal.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <fstream>
#include <optional>
#include <sstream>

#include "octet/base/checksum.h"

namespace octet {
namespace {

// Returns the first line of a system file, or "" if it cannot be read: an unknown identity matches none.
std::string line_of(const char* path) {
  std::string line;
  std::ifstream file(path);
  std::getline(file, line);
  return line;
}

struct ProcessState {
  char state = '?';
  std::int64_t start_ticks = 0;
};

// /proc/PID/stat: "PID (NAME) STATE ..." with the start as field 22. The name may hold spaces and parentheses.
std::optional<ProcessState> state_of(std::int64_t pid) {
  const std::string stat = line_of(("/proc/" + std::to_string(pid) + "/stat").c_str());
  const std::size_t name_end = stat.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream fields(stat.substr(name_end + 1));
  ProcessState result;
  fields >> result.state;
  std::string skipped;
  for (int field = 4; field < 22; ++field) fields >> skipped;
  if (!(fields >> result.start_ticks)) return std::nullopt;
  return result;
}

}  // namespace

ProcessIdentity ProcessIdentity::mine() {
  ProcessIdentity me;
  std::array<char, HOST_NAME_MAX + 1> host{};
  ::gethostname(host.data(), host.size() - 1);
  me.host = host.data();
  if (const std::string id = line_of("/etc/machine-id"); !id.empty()) {
    RunningChecksum sum;
    sum.update(id);
    me.machine = sum.hex();
  }
  me.boot = line_of("/proc/sys/kernel/random/boot_id");
  std::array<char, 64> name{};
  if (::readlink("/proc/self/ns/pid", name.data(), name.size() - 1) > 0) me.pid_namespace = name.data();
  me.pid = ::getpid();
  if (const auto state = state_of(me.pid)) me.start_ticks = state->start_ticks;
  return me;
}

Fate fate_of(const ProcessIdentity& process) {
  const ProcessIdentity me = ProcessIdentity::mine();
  if (process.boot != me.boot) {
    const bool same_machine =
        process.host == me.host && process.machine == me.machine && !me.machine.empty() && !process.boot.empty();
    return same_machine ? Fate::ended : Fate::unknown;
  }
  if (me.boot.empty() || process.pid_namespace != me.pid_namespace) return Fate::unknown;
  if (process.pid <= 0 || (::kill(static_cast<pid_t>(process.pid), 0) != 0 && errno == ESRCH)) return Fate::ended;
  // Other users' processes may be hidden in /proc.
  const auto state = state_of(process.pid);
  if (!state) return Fate::runs;
  const bool another = process.start_ticks != 0 && state->start_ticks != process.start_ticks;
  const bool ended = state->state == 'Z' || state->state == 'X' || another;
  return ended ? Fate::ended : Fate::runs;
}

}  // namespace octet
