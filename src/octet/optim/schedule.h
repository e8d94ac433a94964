// The learning rate as a pure function of the step. A checkpoint does not need to store it, and a resumed run cannot deviate.
#pragma once

#include <cstdint>
#include <string_view>

namespace octet::optim {

enum class Decay : std::uint8_t { cosine, linear, wsd, constant };
// Reads "cosine", "linear", "wsd" or "constant". Throws Error{config} with the value and the nearest name if the name is unknown.
Decay parse_decay(std::string_view name);

// The share of the steps after warm-up over which `wsd` decays.
constexpr double kWsdDecayShare = 0.2;

struct Schedule {
  double lr = 3e-4;             // peak learning rate
  std::int64_t steps = 1000;    // number of steps of the whole run
  std::int64_t warmup_steps = 0;
  Decay decay = Decay::cosine;
  double min_lr_factor = 0.1;   // learning rate of the last step / lr; not used by `constant`
};

// The learning rate of `step`, which must be at least 1. A step after the last one gets the learning rate of the last step.
//   warm-up, step <= warmup_steps:  lr * step / warmup_steps. Step 1 gets lr / warmup_steps, step warmup_steps gets lr.
// After warm-up, with n = steps - warmup_steps, p = (step - warmup_steps) / n in (0, 1] and m = min_lr_factor:
//   cosine    lr * (m + (1 - m) * (1 + cos(pi p)) / 2)
//   linear    lr * (1 - (1 - m) * p)
//   wsd       lr while p <= 1 - kWsdDecayShare, then lr * (1 - (1 - m) * (p - (1 - kWsdDecayShare)) / kWsdDecayShare)
//   constant  lr
double learning_rate(const Schedule& schedule, std::int64_t step);

}  // namespace octet::optim
