#include "octet/plan/offload_time.h"

#include <algorithm>

namespace octet::plan {

StateCopies state_copies(const std::vector<parallel::TimedTask>& update) {
  double fetched = 0, offloaded = 0, exposed = 0, computed = 0;
  for (const auto& [task, begin, end, tensor_s] : update) {
    if (task.kind == parallel::Kind::fetch) fetched += end - begin;
    if (task.kind == parallel::Kind::offload) offloaded += end - begin;
    if (task.stream != parallel::StreamId::compute) continue;
    if (task.kind == parallel::Kind::update && task.part >= 0) exposed += begin - computed;
    computed = end;
  }
  return {.seconds = std::max(fetched, offloaded), .exposed_s = exposed};
}

}  // namespace octet::plan
