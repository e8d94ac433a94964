// Random orders of a list of tasks that its waits permit: what the streams of a GPU may do.
#pragma once

#include <atomic>
#include <cstdint>
#include <initializer_list>
#include <random>
#include <tuple>
#include <vector>

#include "octet/parallel/schedule.h"
#include "support/mesh_run.h"

namespace octet::testing {

// The tasks of each stream stay in order. A task comes after those that it waits for: the last one before it in the list that
// leaves the event behind, or all of the computation before it (`here`). If the computation and another stream could
// both go on, the other one does with probability `others_first`; 0 delays exchanges as long as possible. One seed gives all
// ranks the same order.
inline std::vector<parallel::Task> shuffled(const std::vector<parallel::Task>& tasks, std::mt19937_64& random,
                                            double others_first) {
  using parallel::StreamId;
  const auto may_run = [&](std::size_t i, const std::vector<char>& done) {
    for (std::size_t before = 0; before < i; ++before) {
      if (!done[before] &&
          (tasks[before].stream == tasks[i].stream || (tasks[i].after_compute && tasks[before].stream == StreamId::compute)))
        return false;
    }
    for (const parallel::Task::Wait& wait : tasks[i].waits) {
      if (wait.number < 0) continue;
      for (std::size_t before = i; before-- > 0;) {
        const parallel::Task& task = tasks[before];
        if (!task.leaves_event || task.kind != wait.kind || task.event() != wait.number) continue;
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

// Expects the bits of the listed order if the tasks of each list run in random orders that its waits permit.
inline void expect_same_bits_in_any_order(const train::EngineOptions& options, const parallel::Layout& layout, const Steps& steps,
                                          std::initializer_list<double> others_first) {
  SCOPED_TRACE(text(layout));
  const RunState expected = run_mesh(options, layout, steps);
  for (const double probability : others_first) {
    SCOPED_TRACE(probability);
    std::atomic<int> moved = 0;
    const auto shuffle = [&](train::Engine& engine) {
      engine.model().units().executor().arrange(
          [&moved, probability, random = std::mt19937_64(1)](const std::vector<parallel::Task>& tasks) mutable {
            std::vector<parallel::Task> result = shuffled(tasks, random, probability);
            const auto key = [](const parallel::Task& t) { return std::tuple(t.kind, t.index, t.part, t.flight); };
            for (std::size_t i = 0; i < tasks.size(); ++i) moved += key(tasks[i]) != key(result[i]);
            return result;
          });
    };
    expect_same_bits(run_mesh(options, layout, steps, {.before = shuffle}), expected);
    EXPECT_GT(moved, 0);
  }
}

}  // namespace octet::testing
