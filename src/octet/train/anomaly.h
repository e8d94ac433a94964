// Detects when training goes wrong: steps that are not finite, and spikes of the loss.
#pragma once

#include <cstdint>
#include <deque>

#include "octet/base/json.h"


namespace octet::train {

class Anomaly {
 public:
  enum class Verdict : std::uint8_t {
    fine,
    skipped,    // the step was not finite and changed no weight
    roll_back,  // kSkipsInARow steps in a row were skipped, or the loss is above kSpikeFactor times the mean of the last kWindow losses
  };
  static constexpr int kSkipsInARow = 10;
  static constexpr double kSpikeFactor = 2.0;
  static constexpr std::size_t kWindow = 100;
  static constexpr std::size_t kFewest = 10;  // losses that are needed before a spike can be detected

  Verdict observe(double loss, bool found_inf);
  std::int64_t skipped_steps() const { return skipped_; }
  // Why the last roll_back verdict was given.
  const std::string& reason() const { return reason_; }

  nlohmann::json state() const;
  void restore(const nlohmann::json& state);
  // Forgets the current row of skipped steps. Call it after restore() in a rollback, so that skips before the checkpoint do not count
  // towards the next row.
  void begin_row() { in_a_row_ = 0; }

 private:
  std::deque<double> losses_;
  std::int64_t skipped_ = 0;
  int in_a_row_ = 0;
  std::string reason_;
};

}  // namespace octet::train
