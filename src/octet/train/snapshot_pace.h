// Decides after which steps a run takes snapshots in memory: checkpoint.memory_every.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "octet/train/config_checkpoint.h"

namespace octet::train {

class SnapshotPace {
 public:
  // Returns nothing unless `text` is "auto" or a number of steps.
  static std::optional<SnapshotPace> parse(const std::string& text);

  bool takes_none() const { return every_ == 0; }
  bool is_auto() const { return !every_; }
  // Returns the pace of a run with `ranks` ranks. Its configuration must be valid. With "auto", snapshots and the steps that
  // failures repeat together cost least. Snapshots cost at least kLeastShare and at most kMostShare of the time. They are never
  // sparser than checkpoints, unless they would cost more than kMostShare.
  static SnapshotPace of(const CheckpointConfig& config, int ranks);
  // The seconds between snapshots that cost `cost_s` each, with "auto", before they are rounded to steps.
  double auto_s(double cost_s) const;
  double mtbf_s() const { return mtbf_s_; }  // of the run; 0: not known
  // Whether a snapshot is due after `step`. With "auto", the first one of a process is due after its second step.
  bool due(std::int64_t step);
  // Records that the snapshot after `step` cost training `cost_s` seconds, and that a step takes `step_s`. "auto" then decides
  // when the next one is due.
  void took(std::int64_t step, double cost_s, double step_s);
  // Returns the steps between snapshots that cost `cost_s` seconds each, if a step takes `step_s` and a snapshot is complete
  // `least` steps after it began; none begins before. The run takes snapshots.
  std::int64_t between(double cost_s, double step_s, std::int64_t least) const;

  static constexpr double kMostShare = 0.01, kLeastShare = 0.0002;

 private:
  std::int64_t apart(double cost_s, double step_s) const;
  explicit SnapshotPace(std::optional<std::int64_t> every) : every_(every) {}

  std::optional<std::int64_t> every_;  // nothing: auto
  double mtbf_s_ = 0;
  std::int64_t farthest_ = 0;
  std::optional<std::int64_t> next_;
};

}  // namespace octet::train
