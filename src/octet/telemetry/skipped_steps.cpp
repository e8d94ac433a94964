#include "octet/telemetry/skipped_steps.h"

#include <fmt/format.h>

#include "octet/telemetry/format.h"

namespace octet::telemetry {

bool skipped_most(std::int64_t skipped, std::int64_t steps) { return skipped > steps - skipped; }

namespace {

std::string text_of(std::int64_t skipped, std::int64_t steps, std::string_view reason) {
  const std::string which = steps == 1         ? "the only step"
                            : skipped == steps ? "all " + format_count(steps, "step")
                                               : fmt::format("{} of {}", format_count(skipped), format_count(steps, "step"));
  return fmt::format("{} had {} and {} skipped", which, reason, skipped == 1 ? "was" : "were");
}

}  // namespace

std::string text_of_skipped(std::int64_t skipped, std::int64_t steps) {
  return text_of(skipped, steps, "a loss or gradient that is not finite");
}

std::string text_of_empty(std::int64_t empty, std::int64_t steps) { return text_of(empty, steps, "no token to train on"); }

}  // namespace octet::telemetry
