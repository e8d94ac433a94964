// Runs tasks that need memory. Each lane has its own memory; there are only as many lanes as tasks that run at once.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>

#include "octet/base/threads.h"

namespace octet::kernels::cpu {

inline constexpr std::int64_t kMostLanes = 256;

// The number of lanes for `tasks` tasks.
inline std::int64_t lanes_for(std::int64_t tasks) { return std::min({std::int64_t{num_threads()}, tasks, kMostLanes}); }

// Calls body(lane, task) once for each task. Calls with the same lane, in [0, lanes), never
// overlap. A lane first does its own share of consecutive tasks, which is the same in every call,
// and then takes tasks of other lanes. What a core wrote in one call is thus mostly used by the
// same core in the next call. Moving it between the caches of two cores halved the measured speed.
template <class Body>
void for_each_task(std::int64_t lanes, std::int64_t tasks, const Body& body) {
  std::array<std::atomic<std::int64_t>, kMostLanes> next;
  const auto begin_of = [=](std::int64_t lane) { return tasks * lane / lanes; };
  for (std::int64_t lane = 0; lane < lanes; ++lane)
    next[static_cast<std::size_t>(lane)].store(begin_of(lane), std::memory_order_relaxed);
  parallel_for(lanes, [&](std::int64_t lane) {
    for (std::int64_t i = 0; i < lanes; ++i) {
      const std::int64_t share = (lane + i) % lanes, end = begin_of(share + 1);
      std::atomic<std::int64_t>& counter = next[static_cast<std::size_t>(share)];
      for (std::int64_t task; (task = counter.fetch_add(1, std::memory_order_relaxed)) < end;) body(lane, task);
    }
  });
}

}  // namespace octet::kernels::cpu
