// The time that all stages of a pipeline together need for the passes of a step.
#pragma once

#include <functional>
#include <vector>

#include "octet/parallel/pipeline.h"
#include "octet/parallel/schedule.h"

namespace octet::plan {

// The seconds of a stage's passes through each of its chunks.
struct PassTimes {
  std::vector<double> forward, backward;
  double of(const parallel::Visit& visit) const {
    return (visit.backward ? backward : forward)[static_cast<std::size_t>(visit.chunk)];
  }
};

// Returns the mean times of the passes of a step from the times of its tasks on the computation's stream, including waits between
// the tasks.
PassTimes pass_times(const std::vector<parallel::TimedTask>& tasks, int chunks);

struct TimedPass {
  parallel::Visit visit;
  double begin = 0, end = 0;  // in seconds from the first pass of the step
};

struct PipelineTime {
  double seconds = 0;        // from the first pass to the end of the last one
  std::vector<double> busy;  // of each stage, in its passes
  std::vector<std::vector<TimedPass>> passes;  // of each stage, in their order
  // The bubble of a stage: the time in which it has nothing to do.
  double idle(int stage) const { return seconds - busy[static_cast<std::size_t>(stage)]; }
};

// Returns the bubble of equal stages as a share of the work of one of them, (P - 1) / (V M), without the time of messages.
inline double ideal_bubble(parallel::Stages stages, std::int64_t micro_batches) {
  return static_cast<double>(stages.count - 1) / static_cast<double>(stages.chunks * micro_batches);
}

// Simulates the visits of all stages. A pass begins when its stage is free and its message has arrived. A message between stage
// i and the next one arrives message_s[i] seconds after the end of the pass that sends it.
PipelineTime pipeline_time(parallel::Stages stages, int micro_batches,
                           const std::function<double(int stage, const parallel::Visit&)>& seconds,
                           const std::vector<double>& message_s);

}  // namespace octet::plan
