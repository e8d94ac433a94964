#include "octet/app/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

namespace octet::app {

Progress::Progress(std::string label, std::int64_t steps)
    : label_(std::move(label)), every_(std::max<std::int64_t>(1, steps / 10)), terminal_(isatty(STDOUT_FILENO) != 0) {}

void Progress::operator()(std::string_view line) {
  ++lines_;
  if (terminal_) {
    fmt::print("\r\x1b[K{:<12} {}", label_, line);
  } else if (lines_ == 1 || lines_ % every_ == 0) {
    fmt::print("{:<12} {}\n", label_, line);
  }
  std::fflush(stdout);
}

void Progress::clear() const {
  if (!terminal_) return;
  fmt::print("\r\x1b[K");
  std::fflush(stdout);
}

void Progress::end() const {
  if (terminal_) fmt::print("\n");
}

}  // namespace octet::app
