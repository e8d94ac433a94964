// A whole step of one rank, counted on the meta device by queues that keep time.
#pragma once

#include <string>
#include <vector>

#include "octet/train/engine.h"

namespace octet::train {

// A named range of the step's work, in seconds from the step's begin; it may begin before 0 where a queue still has work of the
// step before.
struct StepRange {
  const char* stream;  // "compute", "communication" or "context"
  std::string name;    // "layer 3 forward", "gather unit 4"
  double begin, end;
};

struct StepCount {
  std::vector<OpTime> compute, wire;  // of the step on its queue, on those beside it; ops of one name, shape and group added up
  std::vector<OpTime> each;           // of these the exchanges of one micro-batch more; of three or more alone
  std::vector<StepRange> ranges;      // of the micro-batches that were run and the optimizer, by begin
  double seconds = 0;                 // from the end of the step before it, on the queue of the computation, to its own
};

// A step of `micro_batches` on a GPU. `groups`: silent ones of options.rank, to whose names the result refers. Of more than three
// micro-batches the first, the second and the last are run: the others are like the second.
StepCount count_step(const EngineOptions& options, const parallel::Groups& groups, const OpSeconds& seconds,
                     std::int64_t micro_batches);

}  // namespace octet::train
