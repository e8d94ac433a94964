// The present time for people to read.
#pragma once

#include <optional>
#include <string>

namespace octet {

// The present time in UTC, formatted as strftime does; by default "2026-11-23T20:05:00Z". At most 31 characters.
std::string utc_now(const char* format = "%Y-%m-%dT%H:%M:%SZ");

// Returns the seconds since 1970 of a time such as "2026-11-23T20:05:00Z", or nothing if `text` has another form.
std::optional<double> seconds_of_utc(const std::string& text);

}  // namespace octet
