// One line to stderr, in the reader's words. Results go to stdout; what happens on the way goes here.
#pragma once

#include <string_view>

namespace octet {

void log_info(std::string_view line);
void log_warning(std::string_view line);
// Off: log_info prints nothing (for commands with --json and for tests).
void set_log_info(bool on);

}  // namespace octet
