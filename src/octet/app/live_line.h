// The text of the line that a terminal shows while a run goes on: a bar, the step, the loss with a sparkline, tokens/s, ETA.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "octet/telemetry/format.h"
#include "octet/telemetry/metrics.h"

namespace octet::app {

// The state of a run. Empty and unknown fields are not shown.
struct LiveStep {
  std::string label{};               // which of several runs
  std::int64_t step = 0, steps = 0;  // steps finished, of all
  double loss = telemetry::kUnknown;
  double tokens_per_s = telemetry::kUnknown;  // of a rank
  telemetry::Worker worker = telemetry::Worker::gpu;
  std::string eta{};                          // "3m12s"
};

// Reads a console line of telemetry/recorder.h; a line of another form gives steps = 0.
LiveStep live_step(std::string_view console_line);

enum class Glyphs : std::uint8_t { ascii, unicode };

// At most `columns` - 1 columns wide: what matters least is left out. `losses`, the latest last, make the sparkline, which
// spans their range; ASCII has none.
std::string live_text(const LiveStep& at, std::span<const double> losses, int columns, Glyphs glyphs);

// A console line in at most `columns` columns: the fields that the live line shows, or that change little, go first.
std::string fit_console_line(std::string_view line, int columns);

}  // namespace octet::app
