// Runs the program as a user does.
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <utility>

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
  explicit Process(const std::string& arguments, const std::filesystem::path& folder = ".", const std::string& how = "exec")
      : errors_(::testing::TempDir() + "octet-stderr-XXXXXX") {
    const int error_file = ::mkstemp(errors_.data());
    const std::string command = "cd '" + folder.string() + "' && { " + how + " '" OCTET_PROGRAM "' " + arguments + "; }";
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return;
    // The smallest buffer: the program can be ahead of its reader by a few lines only, where a pipe holds dozens.
    const int smallest = 1;
    ::setsockopt(ends[1], SOL_SOCKET, SO_SNDBUF, &smallest, sizeof smallest);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::dup2(ends[1], STDOUT_FILENO);
      ::dup2(error_file, STDERR_FILENO);
      ::execl("/bin/sh", "sh", "-c", command.c_str(), static_cast<char*>(nullptr));
      ::_exit(127);
    }
    ::close(ends[1]);
    ::close(error_file);
    out_ = ends[0];
  }
  ~Process() {
    send(SIGKILL);
    wait();
    std::error_code ignored;
    std::filesystem::remove(errors_, ignored);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  // The next line of stdout, without its end; empty when there is no more.
  std::optional<std::string> read_line() {
    std::string line;
    for (char c; ::read(out_, &c, 1) == 1;) {
      result_.out += c;
      if (c == '\n') return line;
      line += c;
    }
    return std::nullopt;
  }
  // Reads up to the line of a step from `step` on; false when the output ended first.
  bool read_to_step(std::int64_t step) {
    while (const std::optional<std::string> line = read_line()) {
      if (line->rfind("step ", 0) == 0 && std::stoll(line->substr(5)) >= step) return true;
    }
    return false;
  }
  void send(int signal) const {
    if (pid_ > 0) ::kill(pid_, signal);
  }
  ProgramResult wait() {
    if (pid_ > 0) {
      char buffer[4096];
      for (ssize_t n; (n = ::read(out_, buffer, sizeof buffer)) > 0;) result_.out.append(buffer, static_cast<std::size_t>(n));
      int status = 0;
      ::waitpid(pid_, &status, 0);
      ::close(out_);
      pid_ = -1;
      result_.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      std::stringstream text;
      text << std::ifstream(errors_).rdbuf();
      result_.err = text.str();
    }
    return result_;
  }

 private:
  std::string errors_;
  pid_t pid_ = -1;
  int out_ = -1;
  ProgramResult result_;
};

inline ProgramResult run_program(const std::string& arguments, const std::filesystem::path& folder = ".",
                                 const std::string& how = "exec") {
  return Process(arguments, folder, how).wait();
}

// One line on stderr that holds every part, and this exit code.
template <class... Parts>
::testing::AssertionResult refused(const ProgramResult& result, int code, const Parts&... parts) {
  const auto failure = [&] {
    return ::testing::AssertionFailure() << "exit code " << result.code << " (expected " << code << "), stderr:\n" << result.err;
  };
  if (result.code != code) return failure();
  if (count_lines(result.err) != 1 || result.err.back() != '\n') return failure() << "not one line";
  if (result.err.rfind("octet: ", 0) != 0) return failure() << "does not begin with \"octet: \"";
  for (const std::string& part : {std::string(parts)...}) {
    if (result.err.find(part) == std::string::npos) return failure() << "lacks \"" << part << "\"";
  }
  return ::testing::AssertionSuccess();
}

// A fresh folder, removed with its contents at the end.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = ::testing::TempDir() + "octet-XXXXXX";
    path_ = ::mkdtemp(pattern.data());
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

}  // namespace octet::testing
