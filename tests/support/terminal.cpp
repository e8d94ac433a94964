#include "support/terminal.h"

#include <pty.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <utility>

#include "support/paths.h"

namespace octet::testing {

void Screen::put(std::string glyph) {
  if (column_ == columns_) {
    if (!wraps_) {
      column_ = columns_ - 1;
    } else {
      column_ = 0;
      if (++row_ == cells_.size()) cells_.emplace_back();
      wrapped_.push_back(row_);
    }
  }
  auto& row = cells_[row_];
  if (row.size() <= column_) row.resize(column_ + 1, " ");
  row[column_++] = std::move(glyph);
}

std::string Screen::text_of(std::size_t row) const {
  std::string text;
  for (const std::string& cell : cells_[row]) text += cell;
  text.erase(text.find_last_not_of(' ') + 1);
  return text;
}

void Screen::feed(std::string_view bytes) {
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    if (!escape_.empty()) {
      escape_ += c;
      if (escape_.size() == 2 ? c == '[' : byte < 0x40) continue;
      if (escape_ == "\x1b[K") {
        if (column_ == 0 && !text_of(row_).empty()) erased_.push_back(text_of(row_));
        if (cells_[row_].size() > column_) cells_[row_].resize(column_);
      } else if (escape_ == "\x1b[?7l" || escape_ == "\x1b[?7h") {
        wraps_ = c == 'h';
      } else {
        unknown_.push_back(escape_);
      }
      escape_.clear();
    } else if (c == '\x1b') {
      escape_ = c;
    } else if (c == '\r') {
      column_ = 0;
    } else if (c == '\n') {
      if (++row_ == cells_.size()) cells_.emplace_back();
    } else if (byte < 0x20) {
      unknown_.emplace_back(1, c);
    } else if ((byte & 0xC0) == 0x80) {
      cells_[row_][column_ - 1] += c;
    } else {
      put(std::string(1, c));
    }
  }
}

std::vector<std::string> Screen::rows() const {
  std::vector<std::string> rows;
  for (std::size_t row = 0; row < cells_.size(); ++row) rows.push_back(text_of(row));
  return rows;
}

TerminalProgram::TerminalProgram(const std::string& arguments, const std::filesystem::path& folder, int columns,
                                 const std::string& environment)
    : screen_(columns) {
  const std::string command = "cd '" + folder.string() + "' && unset LANG LC_ALL LC_CTYPE && export " + environment +
                              " && exec '" + program_path() + "' " + arguments;
  winsize size{};
  size.ws_col = static_cast<unsigned short>(columns);
  size.ws_row = 24;
  pid_ = ::forkpty(&terminal_, nullptr, nullptr, &size);
  if (pid_ != 0) return;
  ::execl("/bin/sh", "sh", "-c", command.c_str(), static_cast<char*>(nullptr));
  ::_exit(127);
}

TerminalProgram::~TerminalProgram() {
  if (pid_ <= 0) return;
  send(SIGKILL);
  wait();
}

bool TerminalProgram::read_more() {
  char buffer[4096];
  const ssize_t n = ::read(terminal_, buffer, sizeof buffer);  // fails when nobody holds the other end open
  if (n <= 0) return false;
  const std::string_view read(buffer, static_cast<std::size_t>(n));
  bytes_ += read;
  screen_.feed(read);
  return true;
}

bool TerminalProgram::read_to(const std::string& text) {
  while (bytes_.find(text) == std::string::npos) {
    if (!read_more()) return false;
  }
  return true;
}

void TerminalProgram::send(int signal) const {
  ::kill(pid_, signal);
  const std::string field = "ShdPnd:";
  for (bool waits = true; waits && !ended(); ::usleep(1000)) {
    std::ifstream status("/proc/" + std::to_string(pid_) + "/status");
    for (std::string line; std::getline(status, line);) {
      if (line.starts_with(field)) waits = (std::stoull(line.substr(field.size()), nullptr, 16) >> (signal - 1) & 1) != 0;
    }
  }
}

void TerminalProgram::type(const std::string& keys) const {
  [[maybe_unused]] const ssize_t written = ::write(terminal_, keys.data(), keys.size());
}

bool TerminalProgram::ended() const {
  siginfo_t info{};
  return ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == pid_;
}

int TerminalProgram::wait() {
  while (read_more()) {
  }
  int status = 0;
  ::waitpid(pid_, &status, 0);
  ::close(terminal_);
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace octet::testing
