// Prints the progress of a run: lines in a file, and on a terminal also a live line below them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "octet/app/live_line.h"
#include "octet/base/clock.h"
#include "octet/train/trainer.h"

namespace octet::app {

// Prints to stdout. If stdout is not a terminal, there is no live line, and lines are printed byte for byte.
class Progress {
 public:
  // `train` prints every line. One of several runs, which has a label, prints a line every tenth of its steps, and on a
  // terminal only the last line, when it ends. Labels are padded to `width` characters.
  Progress() : Progress("", 0, 0) {}
  Progress(std::string label, std::int64_t steps, std::size_t width);
  ~Progress();  // takes the live line away
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void line(std::string_view line);  // a console line
  void step(LiveStep at);            // after every step, logged or not
  void step(const train::StepProgress& at);
  void end();

 private:
  std::string label_, last_line_;
  std::size_t width_;
  std::int64_t every_, lines_ = 0;
  bool terminal_;
  Glyphs glyphs_ = Glyphs::ascii;
  std::vector<double> losses_;
  double rate_ = telemetry::kUnknown;  // tokens/s, smoothed
  Clock::time_point next_;             // when the live line may be drawn again
};

}  // namespace octet::app
