// Runs the program `octet` as a user would.
#pragma once

#include <gtest/gtest.h>
#include <sys/types.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <future>
#include <optional>
#include <string>
#include <vector>

#include "support/folder.h"

namespace octet::testing {

struct ProgramResult {
  int code = -1;         // exit code, or 128 + the signal
  std::string out, err;  // `err` without the times that lines of a run begin with
};

// The text without the time ("2026-11-23T20:05:00Z ") at the beginning of its lines.
std::string without_times(const std::string& text);

// Succeeds if `part` is in the text.
::testing::AssertionResult says(const std::string& text, const std::string& part);

inline std::int64_t count_lines(const std::string& text) { return std::count(text.begin(), text.end(), '\n'); }

// Sends a signal to one process. Throws if there is none, because kill(-1) would reach every process of this user: a test that
// looks for a rank may find that it has just ended.
void signal_process(pid_t process, int signal);

// A running program. Tests can follow its output and send it signals. The destructor kills it if it still runs.
// It also ends with the thread that started it.
class Process {
 public:
  // A shell runs `how`, the program and `arguments` as one command line. `how` may limit the program, for example
  // "ulimit -f 100; exec".
  explicit Process(const std::string& arguments, const std::filesystem::path& folder = ".", const std::string& how = "exec");
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  // Returns the next line of stdout without its line feed, or nothing at the end.
  std::optional<std::string> read_line();
  // Reads until the line of step `step` or a later step. Returns false if the output ends first.
  bool read_to_step(std::int64_t step);
  void send(int signal) const;
  // Also waits until the process has taken the signal. Until then, the same signal once more would be lost.
  void send_and_wait(int signal) const;
  pid_t pid() const { return pid_; }
  ProgramResult wait();

 private:
  std::string errors_;
  pid_t pid_ = -1;
  int out_ = -1;
  ProgramResult result_;
};

// Reads what a process prints until it ends, so that the process never waits for its reader. If nobody has asked for the result,
// the destructor kills the process, so that a failed assertion does not wait for a run without an end.
class PendingResult {
 public:
  explicit PendingResult(Process& process)
      : pid_(process.pid()), result_(std::async(std::launch::async, [&process] { return process.wait(); })) {}
  ~PendingResult() {
    if (result_.valid() && result_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) ::kill(pid_, SIGKILL);
  }
  PendingResult(const PendingResult&) = delete;
  PendingResult& operator=(const PendingResult&) = delete;
  ProgramResult get() { return result_.get(); }

 private:
  pid_t pid_;
  std::future<ProgramResult> result_;
};

ProgramResult run_program(const std::string& arguments, const std::filesystem::path& folder = ".",
                          const std::string& how = "exec");

// Succeeds if the program exited with `code` and wrote one line to stderr that holds every part.
::testing::AssertionResult is_refused(const ProgramResult& result, int code, const std::vector<std::string>& parts);
template <class... Parts>
::testing::AssertionResult refused(const ProgramResult& result, int code, const Parts&... parts) {
  return is_refused(result, code, {std::string(parts)...});
}

}  // namespace octet::testing
