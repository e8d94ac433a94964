// Messages about progress and problems. Each call writes one line to stderr; results go to stdout.
#pragma once

#include <cstdint>
#include <string_view>

namespace octet {

void log_info(std::string_view line);
void log_warning(std::string_view line);
// A warning that every rank would print with the same text. Only one rank of a run prints it.
void log_shared_warning(std::string_view line);

// Which messages this process prints. The first rank prints all messages. The other ranks omit progress and shared warnings, but
// still print the warnings that concern only them (`own_warnings`). `warnings` omits progress only.
enum class Log : std::uint8_t { all, warnings, own_warnings };
void set_log(Log log);

// Whether lines begin with the time. Commands that end soon print no time. Lines of a run begin with the present time in UTC:
// "2026-11-23T20:05:00Z " in a file or pipe, "20:05:00Z " on a terminal.
enum class LogTime : std::uint8_t { none, utc };
void set_log_time(LogTime time);

}  // namespace octet
