#include "octet/parallel/executor.h"

#include "octet/base/require.h"

namespace octet::parallel {

void Executor::run(const std::vector<Task>& tasks, const Run& run) {
  for (const Task& task : tasks) {
    Stream& stream = streams_[task.stream];
    wait_before(task);
    const double begin = times_ ? stream.record()->seconds() : 0;
    run(task);
    if (times_) times_->push_back({task, begin, stream.record()->seconds()});
    if (task.leaves_event) events_[{task.kind, task.event()}] = stream.record();
  }
}

void Executor::wait_before(const Task& task) {
  Stream &stream = streams_[task.stream], &compute = streams_[StreamId::compute];
  if (task.after_compute && &stream != &compute) stream.wait(*compute.record());
  for (const Task::Wait& wait : task.waits) {
    const auto found = events_.find({wait.kind, wait.number});
    require(found != events_.end(), "a task waits for the event ", wait.number, " of kind ", static_cast<int>(wait.kind),
            ", which no task has left");
    const Event& event = *found->second;
    if (&stream != &compute || wait.kind == Kind::fetch) {  // states come from the host, not from other ranks
      stream.wait(event);
    } else if (wait.kind == Kind::receive || wait.kind == Kind::send) {
      const StageWaits waits(compute);
      compute.wait_for_ranks(event);
    } else {
      compute.wait_for_ranks(event);
    }
  }
}

}  // namespace octet::parallel
