#include "support/grad_check.h"

namespace octet::testing {

::testing::AssertionResult gradient_agrees(const GradCheck& check) {
  const double base_step = std::pow(std::numeric_limits<double>::epsilon(), 0.2);
  double largest = 0;
  for (std::int64_t i = 0; i < check.count; ++i) largest = std::max(largest, std::abs(check.gradient[i]));
  const bool all = check.samples <= 0 || check.samples >= check.count;
  const Rng rng(check.seed, RngStream::test, name_id(check.name));
  for (std::int64_t sample = 0; sample < (all ? check.count : check.samples); ++sample) {
    const std::int64_t i =
        all ? sample
            : static_cast<std::int64_t>(rng.word64(static_cast<std::uint64_t>(sample)) % static_cast<std::uint64_t>(check.count));
    const double x = check.x[i];
    const double step = base_step * std::max(1.0, std::abs(x));
    double magnitude = check.magnitude;
    const auto difference = [&](double h) {
      const volatile double above = x + h, below = x - h;  // volatile rounds both to double, so that the divisor below is exact
      check.x[i] = above;
      const double f_above = check.f();
      check.x[i] = below;
      const double f_below = check.f();
      check.x[i] = x;
      if (check.magnitude <= 0) magnitude = std::max({magnitude, std::abs(f_above), std::abs(f_below)});
      return (f_above - f_below) / (above - below);
    };
    const double d1 = difference(step), d2 = difference(2 * step);
    const double numeric = (4 * d1 - d2) / 3;
    const double allowed = 0.01 * std::abs(d1 - d2) + 2 * check.noise * magnitude / step;
    const double analytic = check.gradient[i];
    if (!(std::abs(numeric - analytic) <= allowed)) {
      return ::testing::AssertionFailure() << check.name << "[" << i << "] = " << x << ": gradient " << analytic
                                           << ", finite difference " << numeric << ", allowed " << allowed;
    }
    if (!(allowed <= 1e-3 * largest)) {
      return ::testing::AssertionFailure() << check.name << "[" << i << "] = " << x << ": the tolerance " << allowed
                                           << " says nothing about gradients of at most " << largest;
    }
  }
  return ::testing::AssertionSuccess();
}

}  // namespace octet::testing
