// One line to stderr, in the reader's words. Results go to stdout; what happens on the way goes here.
#pragma once

#include <cstdint>
#include <string_view>

namespace octet {

void log_info(std::string_view line);
void log_warning(std::string_view line);
// What every rank of a run would say in the same words.
void log_shared_warning(std::string_view line);

// What is printed. The first rank of a run speaks for the others, which have warnings of their own.
enum class Log : std::uint8_t { all, warnings, own_warnings };
void set_log(Log log);

}  // namespace octet
