#include "octet/plan/goodput.h"

#include <algorithm>
#include <cmath>

namespace octet::plan {

Goodput goodput_of(const Upkeep& upkeep, double interval_s) {
  const double m = upkeep.mtbf_s;
  const double save_s = upkeep.save_s + std::max(0., upkeep.write_s - interval_s);
  const double segment = m * std::exp((upkeep.recover_s + upkeep.write_s) / m) * std::expm1((interval_s + save_s) / m);
  Goodput result{.productive = interval_s / segment, .saves = save_s / segment};
  // Where failures are so frequent that recoveries fail as well, all that is lost counts as recovery.
  result.recovery = std::min(upkeep.recover_s / m, 1 - result.productive - result.saves);
  result.repeated = std::max(0., 1 - result.productive - result.saves - result.recovery);
  return result;
}

std::int64_t best_interval(const Upkeep& upkeep, double step_s) {
  const auto share = [&](std::int64_t steps) { return goodput_of(upkeep, static_cast<double>(steps) * step_s).productive; };
  // The share rises to its maximum and falls behind it, which lies below the time between failures.
  std::int64_t least = std::max<std::int64_t>(1, static_cast<std::int64_t>(std::ceil(upkeep.write_s / step_s)));
  std::int64_t most = least + static_cast<std::int64_t>(std::ceil(upkeep.mtbf_s / step_s));
  while (least < most) {
    const std::int64_t middle = least + (most - least) / 2;
    if (share(middle) < share(middle + 1)) {
      least = middle + 1;
    } else {
      most = middle;
    }
  }
  return least;
}

}  // namespace octet::plan
