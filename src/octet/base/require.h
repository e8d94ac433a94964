// Exceptions with an exit code, and checks that throw them. A message names the
// thing and the value, and the file if the user can correct the error there.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>

namespace octet {

// The program's exit codes. Scripts rely on them.
enum class ExitCode : int {
  done = 0,
  internal = 1,      // a bug, a full disk or a failed verification
  config = 2,        // invalid configuration or arguments
  does_not_fit = 3,  // not enough memory; reported before the first step
  preempted = 75,    // a checkpoint was saved; start the run again to continue
  data = 76,         // missing or invalid corpus, model directory or checkpoint
  not_finite = 77,   // loss not finite after the permitted rollbacks or in more than half of the steps, or weights not finite
  peer = 78,         // another rank or the interconnect failed
  unfit = 79,        // this host must not take part: `octet doctor --gate` or other ranks found a fault
  stalled = 80,      // no rank has moved for comm.stall_s
  interrupted = 130,
};

class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

// A source line of this program. clang 14 has no std::source_location.
struct Location {
  const char* file;
  int line;
  static constexpr Location here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) { return {file, line}; }
};

template <class... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

// Returns the items as concat() writes them, with `between` between them.
template <class Items>
std::string joined(const Items& items, const char* between = ", ") {
  std::ostringstream out;
  const char* before = "";
  for (const auto& item : items) out << std::exchange(before, between) << item;
  return out.str();
}

// The condition of a `require`. The implicit conversion from bool records the caller's source line.
struct Condition {
  bool holds;
  Location location;
  // NOLINTNEXTLINE(google-explicit-constructor): allows require(x > 0, ...)
  Condition(bool value, Location where = Location::here()) : holds(value), location(where) {}
};

[[noreturn]] void fail_requirement(Location where, const std::string& message);

// Checks a condition that only a bug in this program can violate. Throws Error{internal} with the source file and line.
template <class... Parts>
void require(Condition condition, const Parts&... parts) {
  if (!condition.holds) fail_requirement(condition.location, concat(parts...));
}

// Checks a condition that a user's configuration or data can violate. The message is all that the user sees: one line with the
// value and the file.
template <class... Parts>
void demand(bool holds, ExitCode code, const Parts&... parts) {
  if (!holds) throw Error(code, concat(parts...));
}

template <class... Parts>
[[noreturn]] void fail(ExitCode code, const Parts&... parts) {
  throw Error(code, concat(parts...));
}

}  // namespace octet
