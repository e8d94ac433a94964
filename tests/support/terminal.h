// The program on a pseudo-terminal, and what such a terminal then shows.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace octet::testing {

// The few control sequences that the program may write, interpreted as a terminal of `columns` columns and endless rows does.
class Screen {
 public:
  explicit Screen(int columns) : columns_(static_cast<std::size_t>(columns)) {}
  void feed(std::string_view bytes);

  // From the top, without trailing blanks; the last is the one the cursor stands in.
  std::vector<std::string> rows() const;
  // What stood in a row, from its beginning to its end, when the row was erased.
  const std::vector<std::string>& erased() const { return erased_; }
  // The rows that a text too long for the row above has filled.
  const std::vector<std::size_t>& wrapped() const { return wrapped_; }
  // The control sequences that are not interpreted.
  const std::vector<std::string>& unknown() const { return unknown_; }

 private:
  void put(std::string glyph);
  std::string text_of(std::size_t row) const;

  std::size_t columns_, row_ = 0, column_ = 0;
  bool wraps_ = true;
  std::string escape_;                               // begun and not whole
  std::vector<std::vector<std::string>> cells_{{}};  // UTF-8 sequences, a column each
  std::vector<std::string> erased_, unknown_;
  std::vector<std::size_t> wrapped_;
};

// The program at work on a terminal of this width. Killed, if still alive, when this goes out of scope.
class TerminalProgram {
 public:
  // `environment`: assignments as a shell takes them.
  TerminalProgram(const std::string& arguments, const std::filesystem::path& folder, int columns,
                  const std::string& environment = "TERM=xterm LC_ALL=C.UTF-8");
  ~TerminalProgram();
  TerminalProgram(const TerminalProgram&) = delete;
  TerminalProgram& operator=(const TerminalProgram&) = delete;

  // Reads until the bytes so far hold `text`; false when the output ended first.
  bool read_to(const std::string& text);
  // Returns when the program has taken the signal: of two that wait, it would see one.
  void send(int signal) const;
  void type(const std::string& keys) const;
  bool ended() const;
  // Reads to the end. The exit code, or 128 + the signal.
  int wait();

  const Screen& screen() const { return screen_; }
  const std::string& bytes() const { return bytes_; }

 private:
  bool read_more();

  Screen screen_;
  std::string bytes_;
  pid_t pid_ = -1;
  int terminal_ = -1;
};

}  // namespace octet::testing
