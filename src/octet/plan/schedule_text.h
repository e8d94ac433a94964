// Lists of tasks in words, for people who read them and for pictures.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "octet/parallel/schedule.h"

namespace octet::plan {

// Describes a task of a list: "block 2 forward: qkv".
std::string name_of(const parallel::StepShape& shape, const parallel::Task& task);
std::string_view name_of(parallel::StreamId stream);
// Returns the numbers of the tasks above number `i` of a list that it waits for.
std::vector<std::size_t> waits_for(const std::vector<parallel::TimedTask>& tasks, std::size_t i);
// Describes everything that task number `i` waits for: "7 close block 0", and what lists before this one did. Empty if it waits
// for nothing.
std::string waits_of(const parallel::StepShape& shape, const std::vector<parallel::TimedTask>& tasks, std::size_t i);
// Long lists leave out the blocks of a chunk, and the pieces of states, that are like those beside them: all but two at either
// end. Returns what is left out with this task, "blocks 2 to 29", or "" if it is shown.
std::string left_out(const parallel::StepShape& shape, const parallel::Task& task);
// A line for each task that is not left out: its number, its times in milliseconds, its stream, what it does, and what it waits
// for.
std::string text_of(const parallel::StepShape& shape, const std::vector<parallel::TimedTask>& tasks);

}  // namespace octet::plan
