#include "octet/train/step_count.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <string_view>

#include "octet/device/timeline.h"

namespace octet::train {

using parallel::StreamId;

namespace {

void add(std::vector<OpTime>& all, const std::vector<OpTime>& part, double times) {
  for (const OpTime& op : part) {
    const auto same = [&](const OpTime& known) {
      return std::string_view(known.op) == op.op && known.work.shape == op.work.shape && known.work.group == op.work.group;
    };
    auto found = std::find_if(all.begin(), all.end(), same);
    if (found == all.end()) {
      found = all.insert(all.end(), {.op = op.op, .work = {.shape = op.work.shape, .group = op.work.group}});
    }
    found->work += {.flops = times * op.work.flops, .fp8_flops = times * op.work.fp8_flops, .bytes = times * op.work.bytes};
    found->calls += static_cast<std::int64_t>(times) * op.calls;
    found->seconds += times * op.seconds;
  }
}

// On a rank that neither gathers nor reduces, no other stream waits for the end of a unit's use.
void drop_closes(StepCount& count) {
  for (auto* list : {&count.tasks, &count.last}) {
    std::erase_if(*list, [](const parallel::TimedTask& timed) { return timed.task.kind == parallel::Kind::close; });
  }
}

// Orders ranges by their beginning, and a range before those that lie in it.
void order_ranges(std::vector<StepRange>& ranges) {
  std::stable_sort(ranges.begin(), ranges.end(),
                   [](const StepRange& a, const StepRange& b) { return a.begin != b.begin ? a.begin < b.begin : a.end > b.end; });
  std::map<std::string_view, std::vector<double>> ends;  // of the ranges of a stream in which the present one lies
  for (StepRange& range : ranges) {
    std::vector<double>& outer = ends[range.stream];
    while (!outer.empty() && outer.back() <= range.begin) outer.pop_back();
    range.depth = static_cast<int>(outer.size());
    outer.push_back(range.end);
  }
}

}  // namespace

StepCount count_step(const EngineOptions& options, const parallel::Groups& groups, const OpSeconds& seconds,
                     std::int64_t micro_batches) {
  Timeline timeline;
  // The list whose tasks run now, and what each task of a list has exchanged over the tensor axis. A task is added to its list
  // when its ops have been timed.
  std::vector<parallel::TimedTask>* list = nullptr;
  std::map<const std::vector<parallel::TimedTask>*, std::vector<double>> tensor_s;
  const OpSeconds seconds_of_task = [&](const char* op, const Work& work) {
    const double taken = seconds(op, work);
    if (list && work.group == groups.tensor->name()) {
      std::vector<double>& of_tasks = tensor_s[list];
      of_tasks.resize(list->size() + 1);
      of_tasks.back() += taken;
    }
    return taken;
  };
  const auto device = make_meta_device(DeviceKind::cuda, seconds_of_task, timeline);
  Engine engine(options, *device, groups);
  Stream& compute = engine.stream();
  const parallel::Streams& of = engine.model().units().streams();
  const auto now = [&] { return compute.record()->seconds(); };
  const std::vector<std::int32_t> ids(static_cast<std::size_t>(options.micro_batch_size * options.seq_len));
  engine.refresh();

  std::vector<Stream*> streams, copies;  // each of them once
  for (const auto id : {StreamId::compute, StreamId::params, StreamId::context, StreamId::tensor, StreamId::experts,
                        StreamId::send_activations, StreamId::send_gradients}) {
    if (std::find(streams.begin(), streams.end(), &of[id]) == streams.end()) streams.push_back(&of[id]);
  }
  for (const auto id : {StreamId::fetch, StreamId::offload}) {
    if (&of[id] != &compute) copies.push_back(&of[id]);
  }

  const auto profile = [&](const auto& body) {
    for (const auto* list : {&streams, &copies}) {
      for (Stream* stream : *list) stream->start_profile();  // only streams with a profile keep time
    }
    body();
    for (Stream* stream : copies) stream->take_profile();
    std::vector<std::vector<OpTime>> profiles;
    for (Stream* stream : streams) profiles.push_back(stream->take_profile());
    return profiles;
  };
  StepCount count;
  const auto time_tasks = [&](std::vector<parallel::TimedTask>* timed) {
    list = timed;
    engine.model().units().executor().time_tasks(timed);
  };
  const auto part = [&](double times, const auto& body) {
    const double begin = now();
    const auto profiles = profile(body);
    add(count.compute, profiles[0], times);
    for (std::size_t i = 1; i < profiles.size(); ++i) add(count.params, profiles[i], times);
    count.seconds += times * (now() - begin);
    return profiles;
  };
  // The micro-batches that run together.
  const int lanes = options.layout.lanes;
  const auto run_together = [&] {
    for (int lane = 0; lane < lanes; ++lane) engine.forward_backward({.tokens = ids, .targets = ids}, nullptr);
  };
  profile([&] {  // a step before, so that the counted step begins while communication of the last optimizer step still runs
    engine.begin_step(lanes);
    run_together();
    engine.apply(0.0, 1);
  });
  const double begin = now();
  // Calls of a pipeline stage differ, so all of them are run.
  const bool stages = options.layout.mesh.stages().count > 1;
  const std::int64_t calls = micro_batches / lanes, run = stages ? calls : std::min<std::int64_t>(calls, 3);
  for (std::int64_t i = 0; i < run; ++i) {
    const bool middle = !stages && run == 3 && i == 1;
    const auto profiles = part(middle ? static_cast<double>(calls - 2) : 1.0, [&] {
      if (i == 0) engine.begin_step(run * lanes);
      if (i == 0 || stages) time_tasks(&count.tasks);
      if (i > 0 && i + 1 == run && !stages) time_tasks(&count.last);
      run_together();
      time_tasks(nullptr);
    });
    if (!middle) continue;
    for (std::size_t i = 0; i < profiles.size(); ++i) {
      std::copy_if(profiles[i].begin(), profiles[i].end(), std::back_inserter(i == 0 ? count.each_compute : count.each_params),
                   [](const OpTime& op) { return !op.work.group.empty(); });
    }
    for (auto* each : {&count.each_compute, &count.each_params}) {
      for (OpTime& op : *each) op.work.bytes /= lanes;
    }
  }
  part(1, [&] {
    time_tasks(&count.update);
    engine.apply(0.0, 2);
    time_tasks(nullptr);
  });
  for (TimedRange& range : timeline) {
    if (range.end <= begin) continue;  // of the step before
    const char* stream = range.stream == &compute                ? "compute"
                         : range.stream == &of[StreamId::params] ? "communication"
                                                                 : "context";
    count.ranges.push_back({stream, std::move(range.name), range.begin - begin, range.end - begin});
  }
  for (auto* list : {&count.tasks, &count.last, &count.update}) {
    for (parallel::TimedTask& task : *list) {
      task.begin -= begin;
      task.end -= begin;
    }
  }
  for (auto* timed : {&count.tasks, &count.last, &count.update}) {
    const std::vector<double>& of_tasks = tensor_s[timed];
    for (std::size_t i = 0; i < of_tasks.size(); ++i) timed->at(i).tensor_s = of_tasks[i];
  }
  count.shape = engine.model().shape();
  if (!count.shape.reduced) drop_closes(count);
  order_ranges(count.ranges);
  return count;
}

}  // namespace octet::train
