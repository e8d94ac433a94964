#pragma once

#include <cstdio>
#include <string_view>
#include <utility>

#include "octet/base/visible.h"

namespace octet::app {

// Text for a file descriptor. Text for a terminal is made visible (octet/base/visible.h), because text from files, options and
// models must not control the terminal of the user who looks at it. Files and pipes get the bytes as they are. Octet's own
// control sequences, for the bottom line, bypass this class.
class OutputText {
 public:
  explicit OutputText(int fd);
  // Writes everything, and waits if the descriptor is non-blocking. Returns 0 or the errno of the failure. `rest` gets the
  // number of bytes that were not written.
  int write(std::string_view text, std::size_t* rest = nullptr);

 private:
  int fd_;
  bool terminal_;
  VisibleText visible_;
};

// The same for output whose loss must not end a run. After a full disk, each text is tried anew, and before the first one that
// can be written, a line says how many bytes are missing. When the reader has gone, nothing is written any more.
class LastingOutput {
 public:
  explicit LastingOutput(int fd) : text_(fd) {}
  // Returns 0 or the errno of the failure.
  int write(std::string_view text);
  // Whether output is missing that no line reports. If the reader has gone, nothing counts as missing.
  bool lost() const { return missing_ > 0 && !unread_; }

 private:
  std::size_t put(std::string_view text);  // returns how many bytes were not written

  OutputText text_;
  std::size_t missing_ = 0;  // bytes
  int error_ = 0;            // errno of the last write
  bool unread_ = false, within_a_line_ = false;
};

// While an object lives, stdout is stderr. For a command with --json: a program that reads its standard output must find only
// the JSON.
class StdoutToStderr {
 public:
  StdoutToStderr() : stdout_(std::exchange(stdout, stderr)) {}
  ~StdoutToStderr() { stdout = stdout_; }
  StdoutToStderr(const StdoutToStderr&) = delete;
  StdoutToStderr& operator=(const StdoutToStderr&) = delete;

 private:
  std::FILE* stdout_;
};

// Whether a descriptor is a terminal that can erase a line and show colours.
bool obeys_sequences(int fd);
// Whether the user also wants colours: NO_COLOR is not set (no-color.org).
bool wants_colours(int fd);

// Writes text with Octet's own control sequences to stdout, bypassing its OutputText. The caller must have made all other text
// in it visible.
void print_coloured(std::string_view text);

// Opens stdin, stdout and stderr if the program was started without them (`<&-`, some daemons). Otherwise the next file to be
// opened would get one of their numbers, and messages would be written into it. Reading and writing there fail as if they were
// closed. Uses an OutputText for stdout and stderr if they are terminals. From here on, a write beyond the permitted size of
// files (ulimit -f) fails and does not end the program. Call it before any file is opened. Throws Error{internal} if /dev/null
// cannot be opened.
void hold_standard_streams();

// For commands whose work matters more than what they print. From here on no write to stdout fails, and none ends the program or
// changes its exit code, even when its reader has gone (`| head`, a closed terminal). The first refused write is reported on
// stderr. Stdout becomes a LastingOutput.
void outlive_stdout();

}  // namespace octet::app
