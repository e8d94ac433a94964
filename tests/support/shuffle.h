// Random orders of a list of tasks that its waits permit: what two streams of a GPU may do.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "octet/parallel/schedule.h"

namespace octet::testing {

// The tasks of each stream stay in order. A task comes after those that it waits for: the last one before it in the list that
// leaves the signal behind, or all of the computation before it (`here`). If both streams could go on, the params stream does
// with probability `others_first`; 0 delays exchanges as long as possible. One seed gives all ranks the same order.
inline std::vector<parallel::Task> shuffled(const std::vector<parallel::Task>& tasks, std::mt19937_64& random,
                                            double others_first) {
  using parallel::StreamId;
  const auto may_run = [&](std::size_t i, const std::vector<char>& done) {
    for (std::size_t before = 0; before < i; ++before) {
      if (!done[before] &&
          (tasks[before].stream == tasks[i].stream || (tasks[i].here && tasks[before].stream == StreamId::compute)))
        return false;
    }
    for (const parallel::Task::Wait& wait : tasks[i].waits) {
      if (wait.signal == parallel::Signal::none || wait.index < 0) continue;
      for (std::size_t before = i; before-- > 0;) {
        if (tasks[before].signals != wait.signal || tasks[before].signals_of() != wait.index) continue;
        if (!done[before]) return false;
        break;
      }
    }
    return true;
  };
  std::vector<char> done(tasks.size(), 0);
  std::vector<parallel::Task> result;
  while (result.size() < tasks.size()) {
    std::vector<std::size_t> ready;  // at most the next task of each stream
    for (std::size_t i = 0; i < tasks.size(); ++i) {
      if (!done[i] && may_run(i, done)) ready.push_back(i);
    }
    const bool others = std::uniform_real_distribution<double>()(random) < others_first;
    std::vector<std::size_t> chosen = ready;
    std::erase_if(chosen, [&](std::size_t i) { return (tasks[i].stream != StreamId::compute) != others; });
    if (chosen.empty()) chosen = ready;
    std::size_t next = chosen[std::uniform_int_distribution<std::size_t>(0, chosen.size() - 1)(random)];
    for (const std::size_t i : ready) {
      if (tasks[i].kind == parallel::Kind::send) next = i;
    }
    done[next] = 1;
    result.push_back(tasks[next]);
  }
  return result;
}

}  // namespace octet::testing
