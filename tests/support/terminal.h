// Runs the program on a pseudo-terminal and works out what the terminal shows.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace octet::testing {

// Interprets the few control sequences that the program may write, as a terminal with `columns` columns and any number of rows
// does.
class Screen {
 public:
  explicit Screen(int columns) : columns_(static_cast<std::size_t>(columns)) {}
  void feed(std::string_view bytes);

  // Returns the rows from the top, without trailing blanks. The last row is the lowest that the cursor has reached.
  std::vector<std::string> rows() const;
  // The texts of the rows that the program erased from their first column on.
  const std::vector<std::string>& erased() const { return erased_; }
  // The indices of the rows that were begun because a text was too long for the row above.
  const std::vector<std::size_t>& wrapped() const { return wrapped_; }
  // The control sequences that this class does not interpret.
  const std::vector<std::string>& unknown() const { return unknown_; }

 private:
  void put(std::string glyph);
  std::string text_of(std::size_t row) const;

  std::size_t columns_, row_ = 0, column_ = 0;
  bool wraps_ = true;
  std::string escape_;                               // a control sequence that is not complete yet
  std::vector<std::vector<std::string>> cells_{{}};  // each cell holds one UTF-8 sequence
  std::vector<std::string> erased_, unknown_;
  std::vector<std::size_t> wrapped_;
};

// The program on a terminal of this width. The destructor kills it if it still runs.
class TerminalProgram {
 public:
  // `environment` holds assignments in the shell's syntax.
  TerminalProgram(const std::string& arguments, const std::filesystem::path& folder, int columns,
                  const std::string& environment = "TERM=xterm LC_ALL=C.UTF-8");
  ~TerminalProgram();
  TerminalProgram(const TerminalProgram&) = delete;
  TerminalProgram& operator=(const TerminalProgram&) = delete;

  // Reads until the output contains `text`. Returns false if the output ends first.
  bool read_to(const std::string& text);
  // Returns once the program has taken the signal. If two were pending at once, the program might see only one.
  void send(int signal) const;
  void type(const std::string& keys) const;
  bool ended() const;
  // Reads to the end. Returns the exit code, or 128 + the signal.
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
