#include "octet/app/byte_progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <utility>

#include "octet/telemetry/format.h"

namespace octet::app {
namespace {
using std::chrono::seconds;
}  // namespace

ByteProgress::ByteProgress(std::string label)
    : label_(std::move(label)),
      terminal_(isatty(STDERR_FILENO) != 0),
      start_(Clock::now()),
      next_(start_ + seconds(terminal_ ? 1 : 10)) {}

ByteProgress::~ByteProgress() {
  if (terminal_ && shown_) fmt::print(stderr, "\r\x1b[K");
}

void ByteProgress::operator()(std::int64_t done, std::int64_t total) {
  const Clock::time_point now = Clock::now();
  if (now < next_ || done <= 0 || total <= 0) return;
  next_ = now + (terminal_ ? Clock::duration(seconds(1)) / 4 : Clock::duration(seconds(10)));
  shown_ = true;
  const double elapsed = std::chrono::duration<double>(now - start_).count();
  const double share = static_cast<double>(done) / static_cast<double>(total);
  const std::string line = fmt::format(
      "{}  {:.0f}%  {} of {}  eta {}", label_, 100 * share, telemetry::format_bytes(static_cast<std::uint64_t>(done)),
      telemetry::format_bytes(static_cast<std::uint64_t>(total)), telemetry::format_duration(elapsed / share - elapsed));
  fmt::print(stderr, "{}{}{}", terminal_ ? "\r\x1b[K" : "", line, terminal_ ? "" : "\n");
  std::fflush(stderr);
}

}  // namespace octet::app
