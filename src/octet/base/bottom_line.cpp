#include "octet/base/bottom_line.h"

#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <string>

#include "octet/base/visible.h"

namespace octet {
namespace {

constexpr std::string_view kErase = "\r\x1b[K";

struct BottomLine {
  std::mutex mutex;
  std::string text;
  std::atomic<int> fd{-1};
  std::atomic<bool> drawn{false};
};
BottomLine& bottom_line() {
  static BottomLine* line = new BottomLine;  // never destroyed: a thread may log while the process ends
  return *line;
}

// Ignores errors: a terminal that no longer accepts output is no reason to end a run.
void write_all(int fd, std::string_view text) noexcept {
  [[maybe_unused]] const ssize_t written = ::write(fd, text.data(), text.size());
}

void erase(BottomLine& line) noexcept {
  if (line.drawn.exchange(false)) write_all(line.fd, kErase);
}

// Draws the line with the terminal's wrapping (mode 7) off. Otherwise a text that is wider than the terminal would fill a
// second line, which nobody would erase.
void draw(BottomLine& line) {
  if (line.text.empty()) return;
  std::string bytes(kErase);
  bytes.append("\x1b[?7l").append(line.text).append("\x1b[?7h\r");
  line.drawn = true;
  write_all(line.fd, bytes);
}

}  // namespace

void show_bottom_line(int fd, std::string_view text) {
  BottomLine& line = bottom_line();
  const std::lock_guard lock(line.mutex);
  if (text.empty()) erase(line);
  line.fd = fd;
  line.text = printable(text);
  draw(line);
}

AboveBottomLine::AboveBottomLine() {
  BottomLine& line = bottom_line();
  line.mutex.lock();
  erase(line);
}

AboveBottomLine::~AboveBottomLine() {
  BottomLine& line = bottom_line();
  draw(line);
  line.mutex.unlock();
}

// Writes only if poll() permits it: if nobody reads the terminal, a write would keep the process from ending.
void abandon_bottom_line() noexcept {
  BottomLine& line = bottom_line();
  pollfd writable = {.fd = line.fd, .events = POLLOUT, .revents = 0};
  if (line.drawn && ::poll(&writable, 1, 0) > 0) erase(line);
}

}  // namespace octet
