// Runs the program as a user does.
#pragma once

#include <gtest/gtest.h>
#include <sys/types.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "support/folder.h"

namespace octet::testing {

struct ProgramResult {
  int code = -1;  // exit code, or 128 + the signal
  std::string out, err;
};

inline std::int64_t count_lines(const std::string& text) { return std::count(text.begin(), text.end(), '\n'); }

// The program at work: its output can be followed, and signals sent. Killed, if still alive, when this goes out of scope.
class Process {
 public:
  // `arguments` as a shell would take them; `how` is what a shell does with the program and its arguments behind it, e.g.
  // "ulimit -f 100; exec".
  explicit Process(const std::string& arguments, const std::filesystem::path& folder = ".", const std::string& how = "exec");
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  // The next line of stdout, without its end; empty when there is no more.
  std::optional<std::string> read_line();
  // Reads up to the line of a step from `step` on; false when the output ended first.
  bool read_to_step(std::int64_t step);
  void send(int signal) const;
  ProgramResult wait();

 private:
  std::string errors_;
  pid_t pid_ = -1;
  int out_ = -1;
  ProgramResult result_;
};

ProgramResult run_program(const std::string& arguments, const std::filesystem::path& folder = ".",
                          const std::string& how = "exec");

// One line on stderr that holds every part, and this exit code.
::testing::AssertionResult is_refused(const ProgramResult& result, int code, const std::vector<std::string>& parts);
template <class... Parts>
::testing::AssertionResult refused(const ProgramResult& result, int code, const Parts&... parts) {
  return is_refused(result, code, {std::string(parts)...});
}

}  // namespace octet::testing
