// A fixed pool of worker threads. The caller divides its work into numbered tasks whose boundaries do not depend on the number of
// threads. This keeps results independent of the number of threads.
#pragma once

#include <cstdint>
#include <functional>

namespace octet {

// Sets the number of threads that parallel_for uses, including the calling
// thread; at least 1. Must not be called while parallel_for is running.
void set_num_threads(int count);
int num_threads();
// The number of cores that this process may use (its affinity mask), at least 1.
int available_cores();

// Calls body(i) once for each i in [0, tasks), in any order, on the pool and on the calling thread, and returns when all calls
// have returned. If a call throws, tasks that have not started are skipped and the first exception is rethrown. A call from
// inside a task runs its tasks one after another on the calling thread.
void parallel_for(std::int64_t tasks, const std::function<void(std::int64_t)>& body);

// Divides [0, count) into ranges of `grain` indices (the last may be shorter) and calls body(begin, end) for each range.
void parallel_ranges(std::int64_t count, std::int64_t grain, const std::function<void(std::int64_t, std::int64_t)>& body);

}  // namespace octet
