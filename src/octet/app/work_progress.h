// Shows the progress of a long operation and when it should end. For a very short operation, shows nothing.
#pragma once

#include <cstdint>
#include <string>

#include "octet/base/clock.h"

namespace octet::app {

// "reading  43%  3.1 GiB of 7.2 GiB  eta 12s", or with a unit "searching  43%  310 of 720 meshes  eta 12s". The estimate assumes
// that the rest takes as long for each byte or unit. `done` and `total` are positive.
std::string progress_line(const std::string& label, std::int64_t done, std::int64_t total, double elapsed_s,
                          const std::string& unit = "");

// Prints to stderr: on a terminal one line that is rewritten and finally removed, otherwise a line every ten seconds.
class WorkProgress {
 public:
  // `unit`: what is counted, like "meshes"; empty: bytes.
  explicit WorkProgress(std::string label, std::string unit = "");
  ~WorkProgress();
  WorkProgress(const WorkProgress&) = delete;
  WorkProgress& operator=(const WorkProgress&) = delete;
  void operator()(std::int64_t done, std::int64_t total);

 private:
  std::string label_, unit_;
  bool terminal_, shown_ = false;
  Clock::time_point start_, next_;
};

}  // namespace octet::app
