// Ranks that computed slower than the others (telemetry/stragglers.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "octet/telemetry/attempts.h"
#include "octet/telemetry/stragglers.h"

namespace octet::report {

// Returns a row for each straggler with a bar over the steps of the run, and a table, or "" if there was none. `last_step` is
// the run's last step.
std::string draw_stragglers(const std::vector<telemetry::StragglerRecord>& records,
                            const std::vector<telemetry::Attempt>& attempts, std::int64_t last_step);

}  // namespace octet::report
