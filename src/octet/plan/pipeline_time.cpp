#include "octet/plan/pipeline_time.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "octet/base/require.h"

namespace octet::plan {

using parallel::Kind;
using parallel::TimedTask;
using parallel::Visit;

PassTimes pass_times(const std::vector<TimedTask>& tasks, int chunks) {
  const auto size = static_cast<std::size_t>(chunks);
  PassTimes sum{std::vector<double>(size), std::vector<double>(size)}, count = sum;
  std::map<int, int> chunk_of_flight;
  double begin = 0, end = 0;
  bool backward = false;
  int chunk = -1;
  const auto close = [&] {
    if (chunk < 0) return;
    (backward ? sum.backward : sum.forward)[static_cast<std::size_t>(chunk)] += end - begin;
    (backward ? count.backward : count.forward)[static_cast<std::size_t>(chunk)] += 1;
  };
  for (const TimedTask& timed : tasks) {
    const parallel::Task& task = timed.task;
    if (task.stream != parallel::StreamId::compute) continue;
    const bool forward_begins = task.kind == Kind::load;
    const bool takes_gradients = task.kind == Kind::take && task.index == static_cast<int>(parallel::Message::gradients);
    if (forward_begins || takes_gradients || task.kind == Kind::head) {
      close();
      begin = end;
      if (chunk < 0) begin = timed.begin;
      backward = !forward_begins;
      if (forward_begins) chunk_of_flight[task.flight] = task.index;
      chunk = chunk_of_flight[task.flight];
    }
    end = timed.end;
  }
  close();
  for (std::size_t c = 0; c < size; ++c) {
    sum.forward[c] /= std::max(1.0, count.forward[c]);
    sum.backward[c] /= std::max(1.0, count.backward[c]);
  }
  return sum;
}

PipelineTime pipeline_time(parallel::Stages stages, int micro_batches,
                           const std::function<double(int stage, const Visit&)>& seconds, const std::vector<double>& message_s) {
  const auto count = static_cast<std::size_t>(stages.count);
  const int chunks = stages.count * stages.chunks;
  std::vector<std::vector<Visit>> visits;
  for (int stage = 0; stage < stages.count; ++stage) visits.push_back(parallel::visits_of(stages, stage, micro_batches));
  std::map<std::tuple<bool, int, int>, double> ended;  // by direction, micro-batch and chunk of the model
  PipelineTime time{.seconds = 0, .busy = std::vector<double>(count), .passes = std::vector<std::vector<TimedPass>>(count)};
  std::vector<std::size_t> next(count);
  std::vector<double> free(count);
  for (bool moved = true; moved;) {
    moved = false;
    for (int stage = 0; stage < stages.count; ++stage) {
      const auto s = static_cast<std::size_t>(stage);
      for (; next[s] < visits[s].size(); ++next[s], moved = true) {
        const Visit& visit = visits[s][next[s]];
        const int chunk = visit.chunk * stages.count + stage, from = chunk + (visit.backward ? 1 : -1);
        double begin = free[s];
        if (from >= 0 && from < chunks) {
          const auto sent = ended.find({visit.backward, visit.micro_batch, from});
          if (sent == ended.end()) break;
          const int link = visit.backward ? stage : from % stages.count;
          begin = std::max(begin, sent->second + message_s[static_cast<std::size_t>(link)]);
        }
        const double taken = seconds(stage, visit);
        free[s] = begin + taken;
        time.busy[s] += taken;
        time.passes[s].push_back({visit, begin, free[s]});
        ended[{visit.backward, visit.micro_batch, chunk}] = free[s];
      }
    }
  }
  for (std::size_t s = 0; s < count; ++s) {
    require(next[s] == visits[s].size(), "stage ", s, " waits for ever");
    time.seconds = std::max(time.seconds, free[s]);
  }
  return time;
}

}  // namespace octet::plan
