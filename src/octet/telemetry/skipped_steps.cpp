#include "octet/telemetry/skipped_steps.h"

#include <fmt/format.h>

#include "octet/telemetry/format.h"

namespace octet::telemetry {

bool skipped_most(std::int64_t skipped, std::int64_t steps) { return skipped > steps - skipped; }

std::string text_of_skipped(std::int64_t skipped, std::int64_t steps) {
  const std::string which = steps == 1         ? "the only step"
                            : skipped == steps ? "all " + format_count(steps, "step")
                                               : fmt::format("{} of {}", format_count(skipped), format_count(steps, "step"));
  return fmt::format("{} had a loss or gradient that is not finite and {} skipped", which, skipped == 1 ? "was" : "were");
}

}  // namespace octet::telemetry
