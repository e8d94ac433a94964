// The time that optimizer states take between host and device in a step (parallel/offload.h).
#pragma once

#include <vector>

#include "octet/parallel/schedule.h"

namespace octet::plan {

struct StateCopies {
  double seconds = 0;    // that the link is busy, in the direction that takes longer
  double exposed_s = 0;  // in which the computation waits for states
};

// Computes them from the timed tasks that end a step.
StateCopies state_copies(const std::vector<parallel::TimedTask>& update);

}  // namespace octet::plan
