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

// Returns a text at most `columns` - 1 columns wide; the least important fields are left out first. `losses`, the latest last,
// make the sparkline, which spans their range; ASCII has none.
std::string live_text(const LiveStep& at, std::span<const double> losses, int columns, Glyphs glyphs);

// Shortens a console line to at most `columns` columns. Fields that the live line shows, or that change little, are removed
// first.
std::string fit_console_line(std::string_view line, int columns);

}  // namespace octet::app
