// Finds ranks that hang. A rank that has ended is noticed at once; one that waits for ever, for a disk that does not answer or
// for a rank that has gone another way, shows only in that no rank does anything any more.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "octet/base/clock.h"
#include "octet/telemetry/rank_page.h"

namespace octet::app {

struct Stall {
  std::string what;         // "no rank has moved for 60 s; rank 3 holds up the others; rank 3: ..."
  std::vector<int> behind;  // the ranks that the others wait for; empty: all have come equally far
};

// Who waits for whom, as the pages of ranks 0 to `ranks` - 1 tell. A rank whose process does not run is behind. If all run, those
// are behind that have begun fewer exchanges of a group than others, and do not themselves wait for others. On a GPU the host
// does not wait, so there only the numbers count.
Stall stall_of(const telemetry::RankPages& pages, int ranks, double silent_s);

using Pages = std::vector<const telemetry::RankPage*>;  // of ranks 0, 1, ...

// Whether ranks move, for somebody who looks at their pages again and again.
class Movement {
 public:
  // stall_s: how long all pages may stay the same while ranks train and evaluate. As long as ten steps take is always allowed,
  // and thirty times stall_s before the second step has ended and while rank 0 loads, saves or exports.
  explicit Movement(double stall_s) : stall_s_(stall_s) {}

  // How long no page has changed, in seconds, if that is longer than allowed.
  std::optional<double> stalled_s(const Pages& pages, Clock::time_point now);

 private:
  double stall_s_;
  std::int64_t marks_ = -1;  // of all ranks together
  Clock::time_point changed_;
};

// The same of an attempt, told once.
class StallWatch {
 public:
  StallWatch(double stall_s, int ranks) : movement_(stall_s), ranks_(ranks) {}
  std::optional<Stall> look(const telemetry::RankPages& pages, Clock::time_point now);

 private:
  Movement movement_;
  int ranks_;
  bool told_ = false;
};

}  // namespace octet::app
