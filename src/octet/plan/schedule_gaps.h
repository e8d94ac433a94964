// Finds the stretches of a long list that are left out when a person reads it, because their neighbours are like them.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "octet/parallel/schedule.h"

namespace octet::plan {

// The entries [begin, end) of a list are left out. `of` says what they are: "blocks 2 to 29", "forward m2 to m5".
struct Gap {
  std::size_t begin = 0, end = 0;
  std::string of;
};

// Leaves out the passes of all micro-batches but the first two and the last two.
std::vector<Gap> gaps_of(const std::vector<parallel::Visit>& passes);
// Leaves out the same passes of a stage. Of the other passes, leaves out all blocks but the first two and the last two, from the
// first task of the computation for these blocks to the last. At the end of a step, leaves out all pieces of states but the first
// two and the last two.
std::vector<Gap> gaps_of(const parallel::StepShape& shape, const std::vector<parallel::TimedTask>& tasks);
// Return when the computation begins and ends the tasks of a gap.
double begin_of(const std::vector<parallel::TimedTask>& tasks, const Gap& gap);
double end_of(const std::vector<parallel::TimedTask>& tasks, const Gap& gap);
// Returns the number of the task with which the first backward pass begins.
std::size_t begin_of_backward(const parallel::StepShape& shape, const std::vector<parallel::TimedTask>& tasks);

}  // namespace octet::plan
