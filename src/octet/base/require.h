// Errors that carry values. A failed `require` names the thing, the value and, for a user's mistake, the file concerned.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace octet {

// Exit codes of the program; a contract with scripts that call it.
enum class ExitCode : int {
  done = 0,
  internal = 1,     // a bug, a full disk, a failed verification
  config = 2,       // bad configuration or arguments
  does_not_fit = 3, // said before any step
  preempted = 75,   // saved, come back
  data = 76,        // bad or missing corpus, model directory or checkpoint
  not_finite = 77,  // loss not finite after the allowed rollbacks, or in every step
  peer = 78,        // a peer or the interconnect failed
  interrupted = 130,
};

class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

// Where a requirement stands in our sources. clang 14 has no std::source_location.
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

// A condition of a requirement; converts from bool and remembers the caller.
struct Condition {
  bool holds;
  Location location;
  // NOLINTNEXTLINE(google-explicit-constructor): a caller writes require(x > 0, ...)
  Condition(bool value, Location where = Location::here()) : holds(value), location(where) {}
};

[[noreturn]] void fail_requirement(Location where, const std::string& message);

// A condition that only a bug of ours can break. Throws Error{internal} with file and line.
template <class... Parts>
void require(Condition condition, const Parts&... parts) {
  if (!condition.holds) fail_requirement(condition.location, concat(parts...));
}

// A condition that a user's configuration or data can break. The message is all that the user sees: one line with the
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
