// How far a long file operation is, and when it will be done. Nothing is said of one that takes a moment.
#pragma once

#include <cstdint>
#include <string>

#include "octet/base/clock.h"

namespace octet::app {

// "reading  43%  3.1 GiB of 7.2 GiB  eta 12s", as if the rest took as long a byte. `done` and `total` are positive.
std::string progress_line(const std::string& label, std::int64_t done, std::int64_t total, double elapsed_s);

// On stderr: on a terminal one line that is rewritten and goes in the end, elsewhere a line every ten seconds.
class ByteProgress {
 public:
  explicit ByteProgress(std::string label);
  ~ByteProgress();
  ByteProgress(const ByteProgress&) = delete;
  ByteProgress& operator=(const ByteProgress&) = delete;
  void operator()(std::int64_t done, std::int64_t total);

 private:
  std::string label_;
  bool terminal_, shown_ = false;
  Clock::time_point start_, next_;
};

}  // namespace octet::app
