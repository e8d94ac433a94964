#include "octet/app/work_progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <utility>

#include "octet/app/standard_streams.h"
#include "octet/base/bottom_line.h"
#include "octet/base/log.h"
#include "octet/telemetry/format.h"

namespace octet::app {
namespace {
using std::chrono::seconds;
}  // namespace

std::string progress_line(const std::string& label, std::int64_t done, std::int64_t total, double elapsed_s,
                          const std::string& unit) {
  const double share = static_cast<double>(done) / static_cast<double>(total);
  const auto amount = [&](std::int64_t count) {
    return unit.empty() ? telemetry::format_bytes(static_cast<std::uint64_t>(count)) : telemetry::format_count(count);
  };
  return fmt::format("{}  {:.0f}%  {} of {}{}{}  eta {}", label, std::floor(100 * share), amount(done), amount(total),
                     unit.empty() ? "" : " ", unit, telemetry::format_duration(elapsed_s / share - elapsed_s));
}

WorkProgress::WorkProgress(std::string label, std::string unit)
    : label_(std::move(label)),
      unit_(std::move(unit)),
      terminal_(obeys_sequences(STDERR_FILENO)),
      start_(Clock::now()),
      next_(start_ + seconds(terminal_ ? 1 : 10)) {}

WorkProgress::~WorkProgress() {
  if (terminal_ && shown_) show_bottom_line(STDERR_FILENO, "");
}

void WorkProgress::operator()(std::int64_t done, std::int64_t total) {
  const Clock::time_point now = Clock::now();
  if (now < next_ || done <= 0 || total <= 0) return;
  next_ = now + (terminal_ ? Clock::duration(seconds(1)) / 4 : Clock::duration(seconds(10)));
  shown_ = true;
  const std::string line = progress_line(label_, done, total, std::chrono::duration<double>(now - start_).count(), unit_);
  if (terminal_) {
    show_bottom_line(STDERR_FILENO, line);
  } else {
    log_info(line);
  }
}

}  // namespace octet::app
