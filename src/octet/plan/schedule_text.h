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
// Says how long the task's exchanges over the tensor axis take: "exchanges 0.210 ms over the tensor axis". Empty if it has none.
std::string exchanges_of(const parallel::TimedTask& timed);
// Returns a line for each task from number `begin` on: its number, its times in milliseconds, its stream, what it does, what
// it exchanges, and for what it waits. One line replaces each stretch that gaps_of() leaves out.
std::string text_of(const parallel::StepShape& shape, const std::vector<parallel::TimedTask>& tasks, std::size_t begin = 0);

}  // namespace octet::plan
