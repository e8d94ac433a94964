// Decides after which steps a run takes snapshots in memory: checkpoint.memory_every.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace octet::train {

class SnapshotPace {
 public:
  // Returns nothing unless `text` is "auto" or a number of steps.
  static std::optional<SnapshotPace> parse(const std::string& text);

  bool takes_none() const { return every_ == 0; }
  bool is_auto() const { return !every_; }
  // Whether a snapshot is due after `step`. With "auto", the first one of a process is due after its second step.
  bool due(std::int64_t step);
  // Records that the snapshot after `step` cost training `cost_s` seconds, and that a step takes `step_s`. With "auto",
  // snapshots are then so far apart that they cost 1% of the time.
  void took(std::int64_t step, double cost_s, double step_s);
  // Returns the steps between snapshots that cost `cost_s` seconds each, if a step takes `step_s` and a snapshot is complete
  // `least` steps after it began; none begins before. The run takes snapshots.
  std::int64_t between(double cost_s, double step_s, std::int64_t least) const;

 private:
  explicit SnapshotPace(std::optional<std::int64_t> every) : every_(every) {}

  std::optional<std::int64_t> every_;  // nothing: auto
  std::optional<std::int64_t> next_;
};

}  // namespace octet::train
