#include "octet/parallel/executor.h"

#include "octet/base/require.h"

namespace octet::parallel {

void Executor::run(const std::vector<Task>& tasks, const Run& run) {
  std::vector<Task> arranged;
  if (arrange_) arranged = arrange_(tasks);
  for (const Task& task : arrange_ ? arranged : tasks) {
    Stream& stream = this->stream(task.stream);
    wait_before(task);
    const double begin = times_ ? stream.record()->seconds() : 0;
    run(task);
    if (times_) times_->push_back({task, begin, stream.record()->seconds()});
    if (task.signals != Signal::none) event_of(task.signals_of(), task.signals) = stream.record();
  }
}

void Executor::wait_before(const Task& task) {
  Stream& stream = this->stream(task.stream);
  Stream& compute = this->stream(StreamId::compute);
  if (task.here && &stream != &compute) stream.wait(*compute.record());
  for (const Task::Wait& wait : task.waits) {
    if (wait.signal == Signal::none || wait.index < 0) continue;
    const std::unique_ptr<Event>& event = event_of(wait.index, wait.signal);
    require(event != nullptr, "a task waits for signal ", static_cast<int>(wait.signal), " of ", wait.index,
            ", which nobody has given");
    if (&stream != &compute || wait.signal == Signal::fetched) {  // states come from the host, not from other ranks
      stream.wait(*event);
    } else if (wait.signal == Signal::received || wait.signal == Signal::sent) {
      const StageWaits waits(compute);
      compute.wait_for_ranks(*event);
    } else {
      compute.wait_for_ranks(*event);
    }
  }
}

std::unique_ptr<Event>& Executor::event_of(int index, Signal signal) {
  const auto at = static_cast<std::size_t>(index);
  if (events_.size() <= at) events_.resize(at + 1);
  return events_[at][static_cast<std::size_t>(signal)];
}

}  // namespace octet::parallel
