// Detects when training goes wrong: steps that are not finite, and losses that suddenly rise.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "octet/base/json.h"

namespace octet::train {

// The setting anomaly.spike. A spike is judged against the losses of the last kWindow steps, once there are kFewest:
//   off     there are none
//   factor  a loss above `factor` times their median
//   auto    kSpikeSteps losses in a row above median + kSpreads x spread, where spread is the distance from the median to the 90th
//           percentile, at least 1% of the median. A single high loss may be due to its batch; several in a row are due to the model.
struct SpikeRule {
  enum class Kind : std::uint8_t { automatic, off, factor };
  Kind kind = Kind::automatic;
  double factor = 0;
};
// Reads "auto", "off" or a number above 1. Returns nothing for any other text.
std::optional<SpikeRule> parse_spike(const std::string& text);

class Anomaly {
 public:
  enum class Verdict : std::uint8_t {
    fine,
    skipped,     // the step was not finite and changed no weight
    not_finite,  // kSkipsInARow steps in a row were skipped
    spike,
  };
  static constexpr int kSkipsInARow = 10, kSpikeSteps = 3;
  static constexpr double kSpreads = 6.0, kLeastSpread = 0.01;
  static constexpr std::size_t kWindow = 100, kFewest = 20;
  static constexpr std::int64_t kGoodSteps = 1000;

  explicit Anomaly(SpikeRule rule = {}) : rule_(rule) {}

  Verdict observe(double loss, bool found_inf);
  // Counts a step without tokens to train on. It changed no weight and has no loss.
  void observe_empty();
  std::int64_t skipped_steps() const { return skipped_; }
  std::int64_t empty_steps() const { return empty_; }
  // The reason of the last verdict `spike` or `not_finite`; and the number of steps from the first high loss to the last, or of
  // skipped steps.
  const std::string& reason() const { return reason_; }
  std::int64_t steps_of_reason() const { return steps_of_reason_; }
  // Whether the last step completes another kGoodSteps steps in a row, none of which was skipped or rolled back.
  bool forgives() const { return forgives_; }

  nlohmann::json state() const;
  void restore(const nlohmann::json& state);
  // Forgets the current rows of skipped steps, of high losses and of good steps. Call it after restore() in a rollback, so that
  // steps before the checkpoint do not count towards the next verdict.
  void begin_row();
  // Forgets all losses, including the high ones of the current row. The run then continues from its present losses.
  void begin_window();

 private:
  std::optional<double> limit();
  void forget_high();

  SpikeRule rule_;
  std::deque<double> losses_;
  std::vector<double> high_;     // the last losses in a row that are above the limit
  std::int64_t high_steps_ = 0;  // steps since the first of them, including skipped and empty ones
  std::int64_t skipped_ = 0, empty_ = 0, good_ = 0, steps_of_reason_ = 0;
  int in_a_row_ = 0;
  bool forgives_ = false;
  std::string reason_, judged_by_;
};

}  // namespace octet::train
