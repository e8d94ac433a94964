#include "octet/optim/schedule.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <string>
#include <utility>
#include <vector>

#include "octet/base/names.h"
#include "octet/base/require.h"

namespace octet::optim {
namespace {

constexpr std::array<std::pair<Decay, std::string_view>, 4> kNames{
    {{Decay::cosine, "cosine"}, {Decay::linear, "linear"}, {Decay::wsd, "wsd"}, {Decay::constant, "constant"}}};

// The learning rate relative to the peak at `progress` in (0, 1] through the steps after warm-up.
double decayed(Decay decay, double progress, double floor) {
  switch (decay) {
    case Decay::cosine:
      return floor + (1 - floor) * 0.5 * (1 + std::cos(std::numbers::pi * progress));
    case Decay::linear:
      return 1 - (1 - floor) * progress;
    case Decay::wsd:
      return 1 - (1 - floor) * std::max(0.0, (progress - (1 - kWsdDecayShare)) / kWsdDecayShare);
    case Decay::constant:
      break;
  }
  return 1;
}

}  // namespace

Decay parse_decay(std::string_view name) {
  std::vector<std::string> known;
  for (const auto& [value, text] : kNames) {
    if (text == name) return value;
    known.emplace_back(text);
  }
  fail(ExitCode::config, "lr_scheduler.decay: unknown value '", name, "', known are cosine, linear, wsd, constant",
       did_you_mean(name, known));
}

double learning_rate(const Schedule& schedule, std::int64_t step) {
  require(step >= 1, "learning_rate: steps count from 1, got ", step);
  if (step <= schedule.warmup_steps) {
    return schedule.lr * static_cast<double>(step) / static_cast<double>(schedule.warmup_steps);
  }
  const std::int64_t after = std::max<std::int64_t>(1, schedule.steps - schedule.warmup_steps);
  const double progress = std::min(1.0, static_cast<double>(step - schedule.warmup_steps) / static_cast<double>(after));
  return schedule.lr * decayed(schedule.decay, progress, schedule.min_lr_factor);
}

}  // namespace octet::optim
