// The bottom line of a terminal, which a run redraws in place. A process has at most one. Everything else is printed above it.
#pragma once

#include <string_view>

namespace octet {

// Replaces the bottom line of the terminal `fd` by `text`; "" removes the line. The cursor stays at the beginning of the line.
// The terminal cuts a text that is too long.
void show_bottom_line(int fd, std::string_view text);

// While an object lives, the bottom line is hidden and no other thread draws it. Print whole lines, and flush them.
class AboveBottomLine {
 public:
  AboveBottomLine();
  ~AboveBottomLine();
  AboveBottomLine(const AboveBottomLine&) = delete;
  AboveBottomLine& operator=(const AboveBottomLine&) = delete;
};

// Removes the line when the process is about to end without running destructors. A signal handler may call it.
void abandon_bottom_line() noexcept;

}  // namespace octet
