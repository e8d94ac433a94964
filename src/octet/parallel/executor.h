// Runs lists of tasks (schedule.h) from top to bottom. For each task it enqueues the waits, then the work, then the event that
// tasks of other streams wait for. It chooses nothing: the order is the list's.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "octet/device/device.h"
#include "octet/parallel/schedule.h"

namespace octet::parallel {

class Executor {
 public:
  explicit Executor(Stream& compute) { add(StreamId::compute, compute); }
  // Lets tasks run on this stream, which must outlive the executor. Several ids may share a stream.
  void add(StreamId id, Stream& stream) { streams_[static_cast<std::size_t>(id)] = &stream; }
  Stream& stream(StreamId id) const { return *streams_[static_cast<std::size_t>(id)]; }
  bool has(StreamId id) const { return streams_[static_cast<std::size_t>(id)] != nullptr; }

  // `run` enqueues the work of a task on the task's stream.
  using Run = std::function<void(const Task&)>;
  void run(const std::vector<Task>& tasks, const Run& run);

  // From here on, adds each task that runs to `times`, with its times on a device whose streams simulate time. Null ends this.
  void time_tasks(std::vector<TimedTask>* times) { times_ = times; }

 private:
  void wait_before(const Task& task);

  std::array<Stream*, kStreams> streams_ = {};
  std::map<std::pair<Kind, int>, std::unique_ptr<Event>> events_;  // by Task::event()
  std::vector<TimedTask>* times_ = nullptr;
};

}  // namespace octet::parallel
