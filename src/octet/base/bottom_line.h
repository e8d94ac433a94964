// The line at the bottom of a terminal that a run redraws in place. A process has at most one; everything else is printed above it.
#pragma once

#include <string_view>

namespace octet {

// Draws `text` in the line that the cursor of the terminal `fd` stands in, instead of the text before; "" takes the line away.
// The cursor stays at the line's beginning. A text that is too long is cut by the terminal.
void show_bottom_line(int fd, std::string_view text);

// While it lives, the line is away and no other thread draws it: print whole lines, and flush them.
class AboveBottomLine {
 public:
  AboveBottomLine();
  ~AboveBottomLine();
  AboveBottomLine(const AboveBottomLine&) = delete;
  AboveBottomLine& operator=(const AboveBottomLine&) = delete;
};

// Takes the line away where the process is about to end and no destructor will. A signal handler may call it.
void abandon_bottom_line() noexcept;

}  // namespace octet
