// The attempts of a supervised run (telemetry/attempts.h): where its time went.
#pragma once

#include <string>
#include <vector>

#include "octet/telemetry/attempts.h"

namespace octet::report {

// Returns the share of time that was productive, a timeline, and a table of the last attempts. "" unless an attempt has ended.
std::string draw_attempts(const std::vector<telemetry::Attempt>& attempts);

}  // namespace octet::report
