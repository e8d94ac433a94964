// Finds ranks that hang. A rank that has ended is noticed at once. A rank that waits for ever is not: it may wait for a disk
// that does not answer, or for an exchange in which the other ranks do not take part. After a while, no rank makes progress any
// more.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "octet/base/clock.h"
#include "octet/telemetry/rank_page.h"

namespace octet::app {

using Pages = std::vector<const telemetry::RankPage*>;  // of ranks 0, 1, ...

struct Stall {
  std::string what;         // "no rank has moved for 60 s; rank 3 holds up the others; rank 3: ..."
  std::vector<int> behind;  // the ranks that the others wait for; empty: all have come equally far
};

// Determines from the pages which ranks hold up the others. If the processes of some ranks do not run, they are these ranks.
// Otherwise they are the ranks that have begun fewer exchanges of a group than its other ranks, and do not themselves wait in a
// group where another rank has begun fewer. On a GPU the host does not wait, so only the numbers of exchanges count.
Stall stall_of(const Pages& pages, double silent_s);

// Judges whether ranks make progress, for a caller that looks at their pages repeatedly.
class Movement {
 public:
  // `stall_s` is how long all pages may stay the same while ranks train and evaluate. The time of ten steps is always allowed,
  // and thirty times stall_s before the second step has ended and while rank 0 loads, saves or exports.
  explicit Movement(double stall_s) : stall_s_(stall_s) {}

  // Returns for how many seconds no page has changed, if that is longer than allowed.
  std::optional<double> stalled_s(const Pages& pages, Clock::time_point now);

 private:
  double stall_s_;
  std::int64_t marks_ = -1;  // of all ranks together
  Clock::time_point changed_;
};

// Reports a stall of an attempt, once.
class StallWatch {
 public:
  explicit StallWatch(double stall_s) : movement_(stall_s) {}
  std::optional<Stall> look(const Pages& pages, Clock::time_point now);

 private:
  Movement movement_;
  bool told_ = false;
};

}  // namespace octet::app
