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
// Returns the numbers of the earlier tasks of a list for which task number `i` waits.
std::vector<std::size_t> waits_for(const std::vector<parallel::TimedTask>& tasks, std::size_t i);
// Describes everything for which task number `i` waits: "7 close block 0", and tasks of previous lists. Empty if it waits for
// nothing.
std::string waits_of(const parallel::StepShape& shape, const std::vector<parallel::TimedTask>& tasks, std::size_t i);
// Long lists omit blocks of a chunk, and pieces of states, that are like their neighbours: all but two at either end. Returns
// what is omitted with this task, "blocks 2 to 29", or "" if it is shown.
std::string left_out(const parallel::StepShape& shape, const parallel::Task& task);
// Returns a line for each task that is not omitted: its number, its times in milliseconds, its stream, what it does, and for
// what it waits.
std::string text_of(const parallel::StepShape& shape, const std::vector<parallel::TimedTask>& tasks);

}  // namespace octet::plan
