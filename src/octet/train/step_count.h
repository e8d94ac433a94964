// A whole step of one rank, counted on the meta device by queues that keep time.
#pragma once

#include <vector>

#include "octet/train/engine.h"

namespace octet::train {

struct StepCount {
  std::vector<OpTime> compute, wire;  // of the step on its queue, on those beside it; ops of one name, shape and group added up
  std::vector<OpTime> each;           // of these the exchanges of one micro-batch more; of three or more alone
  double seconds = 0;                 // from the end of the step before it, on the queue of the computation, to its own
};

// A step of `micro_batches` on a GPU. `groups`: silent ones of options.rank, to whose names the result refers. Of more than three
// micro-batches the first, the second and the last are run: the others are like the second.
StepCount count_step(const EngineOptions& options, const parallel::Groups& groups, const OpSeconds& seconds,
                     std::int64_t micro_batches);

}  // namespace octet::train
