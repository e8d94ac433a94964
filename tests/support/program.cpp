#include "support/program.h"

#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <regex>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "support/paths.h"

namespace octet::testing {

std::string without_times(const std::string& text) {
  static const std::regex kTime(R"(((?:^|\n)(?:\[\d+\] )?)\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ )");
  return std::regex_replace(text, kTime, "$1");
}

::testing::AssertionResult says(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "no \"" << part << "\" in:\n" << text;
}

void signal_process(pid_t process, int signal) {
  if (process <= 1) throw std::runtime_error("there is no process to signal");
  ::kill(process, signal);
}

Process::Process(const std::string& arguments, const std::filesystem::path& folder, const std::string& how)
    : errors_(::testing::TempDir() + "octet-stderr-XXXXXX") {
  const int error_file = ::mkstemp(errors_.data());
  const std::string command = "cd '" + folder.string() + "' && { " + how + " '" + program_path() + "' " + arguments + "; }";
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return;
  // The smallest buffer, so that the program can be only a few lines ahead of its reader. A pipe of the default size holds
  // dozens.
  const int smallest = 1;
  ::setsockopt(ends[1], SOL_SOCKET, SO_SNDBUF, &smallest, sizeof smallest);
  pid_ = ::fork();
  if (pid_ == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // a test that is killed leaves no run behind
    ::dup2(ends[1], STDOUT_FILENO);
    ::dup2(error_file, STDERR_FILENO);
    ::execl("/bin/sh", "sh", "-c", command.c_str(), static_cast<char*>(nullptr));
    ::_exit(127);
  }
  ::close(ends[1]);
  ::close(error_file);
  out_ = ends[0];
}

Process::~Process() {
  send(SIGKILL);
  wait();
  std::error_code ignored;
  std::filesystem::remove(errors_, ignored);
}

std::optional<std::string> Process::read_line() {
  std::string line;
  for (char c; ::read(out_, &c, 1) == 1;) {
    result_.out += c;
    if (c == '\n') return line;
    line += c;
  }
  return std::nullopt;
}

bool Process::read_to_step(std::int64_t step) {
  while (const std::optional<std::string> line = read_line()) {
    if (line->rfind("step ", 0) == 0 && std::stoll(line->substr(5)) >= step) return true;
  }
  return false;
}

void Process::send(int signal) const {
  if (pid_ > 0) ::kill(pid_, signal);
}

void Process::send_and_wait(int signal) const {
  send(signal);
  const auto is_pending = [&] {
    std::ifstream status("/proc/" + std::to_string(pid_) + "/status");
    for (std::string line; std::getline(status, line);) {
      if (line.rfind("ShdPnd:", 0) == 0) return (std::stoull(line.substr(7), nullptr, 16) >> (signal - 1) & 1) != 0;
    }
    return false;
  };
  while (is_pending()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

ProgramResult Process::wait() {
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
    result_.err = without_times(text.str());
  }
  return result_;
}

ProgramResult run_program(const std::string& arguments, const std::filesystem::path& folder, const std::string& how) {
  return Process(arguments, folder, how).wait();
}

::testing::AssertionResult is_refused(const ProgramResult& result, int code, const std::vector<std::string>& parts) {
  const auto failure = [&] {
    return ::testing::AssertionFailure() << "exit code " << result.code << " (expected " << code << "), stderr:\n" << result.err;
  };
  if (result.code != code) return failure();
  if (count_lines(result.err) != 1 || result.err.back() != '\n') return failure() << "not one line";
  // The line begins with "octet: " or, for a mistake in the arguments, with the command, as in "octet data prepare: ".
  const std::size_t colon = result.err.find(": ");
  const bool named = result.err.rfind("octet", 0) == 0 && result.err.find_first_not_of("abcdefghijklmnopqrstuvwxyz ") == colon;
  if (!named) return failure() << "does not begin with \"octet: \" or \"octet COMMAND: \"";
  for (const std::string& part : parts) {
    if (result.err.find(part) == std::string::npos) return failure() << "lacks \"" << part << "\"";
  }
  return ::testing::AssertionSuccess();
}

}  // namespace octet::testing
