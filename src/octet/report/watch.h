// The report of runs that go on, for a server that shows it again and again (app/watch.cpp).
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "octet/report/run.h"
#include "octet/report/summary.h"

namespace octet::report {

// Fetches the page every two seconds and puts the new one in place of the old: the reader's place and what is folded stay. The
// page asks for it as /watch.js.
extern const char* const kWatchScript;

// report.html with how far each run is at its top. `written`: when the newest record was, as a reader's clock shows it.
std::string watched_page(std::string_view title, std::span<const Run> runs, const Comparison& comparison, std::string_view written);

// Before the first step: says what it waits for.
std::string waiting_page(std::string_view title, std::string_view reason);

}  // namespace octet::report
