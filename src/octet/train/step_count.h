// Counts the work of a whole step of one rank on the meta device, whose streams simulate time.
#pragma once

#include <string>
#include <vector>

#include "octet/train/engine.h"

namespace octet::train {

// A named range of the step's work. Times are in seconds from the beginning of the step. A range may begin before 0 if a stream
// is still busy with the previous step.
struct StepRange {
  const char* stream;  // "compute", "communication" or "context"
  std::string name;    // "block 3 forward", "gather head"
  double begin, end;
  int depth = 0;  // the number of other ranges of its stream in which it lies
};

struct StepCount {
  // The ops on the computation stream, and on the communication streams with those that send messages to other pipeline stages.
  // Ops with the same name, shape and group are added up.
  std::vector<OpTime> compute, params;
  // The collectives that each additional micro-batch adds to `compute` and `params`. Empty if fewer than three calls are run, and
  // on a pipeline stage, whose calls differ.
  std::vector<OpTime> each_compute, each_params;
  std::vector<StepRange> ranges;  // of the micro-batches that were run and of the optimizer, in the order in which they begin
  // The tasks of the first micro-batch, or pair of them with two lanes, in the order in which they are enqueued. On a pipeline
  // stage: the tasks of the whole step.
  std::vector<parallel::TimedTask> tasks;
  std::vector<parallel::TimedTask> last;    // those of the last micro-batch or pair, if it is not the first
  std::vector<parallel::TimedTask> update;  // the tasks that end the step
  parallel::StepShape shape;
  double seconds = 0;  // from the end of the step before to the end of this step, on the computation stream
};

// Counts a step of `micro_batches` micro-batches on a GPU. `groups` are silent groups of options.rank; the result refers to
// their names. `seconds` returns the time of each op. If there are more than three micro-batches, only the first, the second
// and the last are run, and the second one represents the others. With lanes these are pairs. A pipeline stage does not wait
// for the others.
StepCount count_step(const EngineOptions& options, const parallel::Groups& groups, const OpSeconds& seconds,
                     std::int64_t micro_batches);

}  // namespace octet::train
