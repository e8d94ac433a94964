// A fixed pool of worker threads. Work is cut by the caller into numbered tasks, never by the number of threads, so that a
// result does not depend on how many threads there are.
#pragma once

#include <cstdint>
#include <functional>

namespace octet {

// Sets how many threads parallel_for uses, the caller included (at least 1). Not to be called while work is under way.
void set_num_threads(int count);
int num_threads();
// Cores this process may use (affinity mask), at least 1.
int available_cores();

// Calls body(i) for i in [0, tasks), each once, in any order, on the pool and the calling thread; returns when all are done.
// The first exception is rethrown here. Nested calls run serially in the caller.
void parallel_for(std::int64_t tasks, const std::function<void(std::int64_t)>& body);

// Cuts [0, count) into ranges of `grain` (the last may be shorter) and calls body(begin, end) for each.
void parallel_ranges(std::int64_t count, std::int64_t grain, const std::function<void(std::int64_t, std::int64_t)>& body);

}  // namespace octet
