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
  // Writes everything, waiting if somebody made the descriptor non-blocking. Returns 0 or the errno of the failure.
  int write(std::string_view text);

 private:
  int fd_;
  bool terminal_;
  VisibleText visible_;
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

// For commands whose work matters more than what they print: from here on no write to stdout fails, and none ends the program, also
// when its reader has gone (`| head`, a closed terminal). The first that is refused is said on stderr; the rest is discarded.
void outlive_stdout();
// Whether stdout refused anything for another reason than a reader that has gone, such as a full disk.
bool lost_output();

}  // namespace octet::app
