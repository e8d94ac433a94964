// Runs lists of tasks (schedule.h) from top to bottom. For each task it enqueues the waits, then the work, then the event that
// tasks of other streams wait for. It chooses nothing: the order is the list's.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "octet/parallel/schedule.h"

namespace octet::parallel {

class Executor {
 public:
  // `streams` must outlive the executor.
  explicit Executor(const Streams& streams) : streams_(streams) {}

  // `run` enqueues the work of a task on the task's stream.
  using Run = std::function<void(const Task&)>;
  void run(const std::vector<Task>& tasks, const Run& run);

  // From here on, adds each task that runs to `times`, with its times on a device whose streams simulate time. Null ends this.
  void time_tasks(std::vector<TimedTask>* times) { times_ = times; }

 private:
  void wait_before(const Task& task);

  const Streams& streams_;
  std::map<std::pair<Kind, int>, std::unique_ptr<Event>> events_;  // by Task::event()
  std::vector<TimedTask>* times_ = nullptr;
};

}  // namespace octet::parallel
