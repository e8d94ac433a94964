#include "octet/plan/goodput.h"

#include <algorithm>
#include <cmath>

namespace octet::plan {

Goodput goodput_of(const Upkeep& upkeep, double interval_s) {
  const double m = upkeep.mtbf_s;
  const double save_s = upkeep.save_s + std::max(0., upkeep.write_s - interval_s);
  const double segment = m * std::exp((upkeep.recover_s + upkeep.write_s) / m) * std::expm1((interval_s + save_s) / m);
  Goodput result{.productive = interval_s / segment, .saves = save_s / segment};
  // If failures are so frequent that recoveries fail as well, all lost time counts as recovery.
  result.recovery = std::min(upkeep.recover_s / m, 1 - result.productive - result.saves);
  result.repeated = std::max(0., 1 - result.productive - result.saves - result.recovery);
  return result;
}

namespace {

// The last number of [from, to] for which `holds` is true; it is true for `from`, and false from some number on.
std::int64_t last_that(std::int64_t from, std::int64_t to, const auto& holds) {
  while (from < to) {
    const std::int64_t middle = to - (to - from) / 2;
    if (holds(middle)) {
      from = middle;
    } else {
      to = middle - 1;
    }
  }
  return from;
}

}  // namespace

std::int64_t best_interval(const Upkeep& upkeep, double step_s, double slack) {
  const auto share = [&](std::int64_t steps) { return goodput_of(upkeep, static_cast<double>(steps) * step_s).productive; };
  const std::int64_t least = std::max<std::int64_t>(1, static_cast<std::int64_t>(std::ceil(upkeep.write_s / step_s)));
  // The share rises to its maximum, which lies below the time between failures, and falls behind it.
  const std::int64_t most = least + static_cast<std::int64_t>(std::ceil(upkeep.mtbf_s / step_s));
  const std::int64_t best =
      last_that(least, most, [&](std::int64_t steps) { return steps == least || share(steps - 1) < share(steps); });
  return last_that(best, most, [&](std::int64_t steps) { return share(steps) >= share(best) - slack; });
}

}  // namespace octet::plan
