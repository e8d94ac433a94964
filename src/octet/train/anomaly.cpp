#include "octet/train/anomaly.h"

#include <algorithm>
#include <charconv>

#include "octet/base/require.h"

namespace octet::train {

std::optional<SpikeRule> parse_spike(const std::string& text) {
  if (text == "auto") return SpikeRule{};
  if (text == "off") return SpikeRule{.kind = SpikeRule::Kind::off};
  SpikeRule rule{.kind = SpikeRule::Kind::factor};
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, rule.factor);
  if (error != std::errc() || end != last || !(rule.factor > 1.0 && rule.factor < 1e30)) return std::nullopt;
  return rule;
}

// Returns nothing until there are enough losses.
std::optional<double> Anomaly::limit() {
  if (rule_.kind == SpikeRule::Kind::off || losses_.size() < kFewest) return std::nullopt;
  std::vector<double> sorted(losses_.begin(), losses_.end());
  std::sort(sorted.begin(), sorted.end());
  const std::size_t n = sorted.size();
  const double median = (sorted[(n - 1) / 2] + sorted[n / 2]) / 2;
  if (rule_.kind == SpikeRule::Kind::factor) {
    judged_by_ = concat(rule_.factor, " times ", median, ", the median of the last ", n, " steps");
    return rule_.factor * median;
  }
  const double spread = std::max(sorted[n * 9 / 10] - median, kLeastSpread * median);
  judged_by_ = concat(median, " + ", kSpreads, " x ", spread, ", the median and ", kSpreads, " times the spread of the last ", n, " steps");
  return median + kSpreads * spread;
}

Anomaly::Verdict Anomaly::observe(double loss, bool found_inf) {
  forgives_ = false;
  if (found_inf) {
    ++skipped_;
    high_steps_ += !high_.empty();
    good_ = 0;
    if (++in_a_row_ < kSkipsInARow) return Verdict::skipped;
    in_a_row_ = 0;
    steps_of_reason_ = kSkipsInARow;
    reason_ = concat(kSkipsInARow, " steps in a row had a loss or gradient that is not finite");
    return Verdict::not_finite;
  }
  in_a_row_ = 0;
  high_.push_back(loss);
  ++high_steps_;
  if (const std::optional<double> most = limit(); most && loss > *most) {
    const bool single = rule_.kind == SpikeRule::Kind::factor;
    if (!single && high_.size() < kSpikeSteps) return Verdict::fine;
    steps_of_reason_ = high_steps_;
    reason_ = concat("loss ", loss, single ? "" : concat(", the last of ", kSpikeSteps, " in a row,"), " is above ", judged_by_);
    forget_high();
    good_ = 0;
    return Verdict::spike;
  }
  // This loss is not high. The high ones before it were due to their batches, so they join the window.
  losses_.insert(losses_.end(), high_.begin(), high_.end());
  good_ += static_cast<std::int64_t>(high_.size());
  forgives_ = good_ >= kGoodSteps;
  if (forgives_) good_ -= kGoodSteps;
  forget_high();
  while (losses_.size() > kWindow) losses_.pop_front();
  return Verdict::fine;
}

void Anomaly::observe_empty() {
  ++empty_;
  high_steps_ += !high_.empty();
  forgives_ = false;
}

void Anomaly::forget_high() {
  high_.clear();
  high_steps_ = 0;
}

void Anomaly::begin_window() {
  losses_.clear();
  forget_high();
}

void Anomaly::begin_row() {
  in_a_row_ = 0;
  good_ = 0;
  forget_high();
}

nlohmann::json Anomaly::state() const {
  return {{"losses", losses_},     {"high", high_}, {"high_steps", high_steps_}, {"skipped", skipped_}, {"empty", empty_},
          {"in_a_row", in_a_row_}, {"good", good_}};
}

void Anomaly::restore(const nlohmann::json& state) {
  losses_ = state.at("losses").get<std::deque<double>>();
  skipped_ = state.at("skipped").get<std::int64_t>();
  in_a_row_ = state.at("in_a_row").get<int>();
  high_ = state.value("high", std::vector<double>());  // absent in checkpoints of earlier versions, as are the next ones
  high_steps_ = state.value("high_steps", std::ssize(high_));
  good_ = state.value("good", std::int64_t{0});
  empty_ = state.value("empty", std::int64_t{0});
}

}  // namespace octet::train
