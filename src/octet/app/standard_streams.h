#pragma once

#include <cstdio>
#include <string_view>
#include <utility>

#include "octet/base/visible.h"

namespace octet::app {

// Text on its way to a file descriptor. What goes to a terminal is made visible (octet/base/visible.h): text from files, options
// and models must not control the terminal of the user who looks at it. Files and pipes get the bytes as they are. Octet's own
// control sequences, of the line at the bottom, do not come this way.
class OutputText {
 public:
  explicit OutputText(int fd);
  // Writes everything, waiting if somebody made the descriptor non-blocking. Returns 0 or the errno of the failure. `rest` gets
  // the number of bytes that were not written.
  int write(std::string_view text, std::size_t* rest = nullptr);

 private:
  int fd_;
  bool terminal_;
  VisibleText visible_;
};

// The same for output whose loss must not end a run. After a full disk each text is tried anew, and the first that is written
// says in a line before it how many bytes are missing. Nothing is tried any more when the reader has gone.
class LastingOutput {
 public:
  explicit LastingOutput(int fd) : text_(fd) {}
  // Returns 0 or the errno of the failure.
  int write(std::string_view text);
  // Whether something is missing, and nothing in the output says so. A reader that has gone misses nothing.
  bool lost() const { return missing_ > 0 && !unread_; }

 private:
  std::size_t put(std::string_view text);  // returns how many bytes were not written

  OutputText text_;
  std::size_t missing_ = 0;  // bytes
  int error_ = 0;            // errno of the last write
  bool unread_ = false, within_a_line_ = false;
};

// While it lives, stdout is stderr. For a command with --json: a program that reads its standard output must find the JSON alone.
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
// Whether its user wants colours, too: NO_COLOR is not set (no-color.org).
bool wants_colours(int fd);

// Writes text with Octet's own control sequences to stdout, past its OutputText. The caller has made all other text in it visible.
void print_coloured(std::string_view text);

// Takes the numbers of stdin, stdout and stderr where the program was started without them (`<&-`, some daemons): the next file
// to be opened would have one, and what is said would be written into it. Reading and writing there fail as if they were closed.
// Puts an OutputText behind stdout and stderr where they are terminals. From here on a write beyond the size that files may have
// (ulimit -f) fails and does not end the program. To be called before any file is opened. Throws Error{internal} when /dev/null
// cannot be opened.
void hold_standard_streams();

// For commands whose work matters more than what they print: from here on no write to stdout fails, and none ends the program,
// also when its reader has gone (`| head`, a closed terminal). The first that is refused is said on stderr. Stdout is a
// LastingOutput.
void outlive_stdout();
// LastingOutput::lost() of stdout.
bool lost_output();

}  // namespace octet::app
