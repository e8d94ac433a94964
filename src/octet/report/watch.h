// Pages for `octet report --watch`, which serves the report of runs that are still going on (app/report_watch.cpp).
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "octet/report/run.h"
#include "octet/report/summary.h"

namespace octet::report {

// The script that the page loads as /watch.js. It fetches the page every two seconds and replaces its content. The scroll
// position stays, and so do the parts that the reader has folded.
extern const char* const kWatchScript;

// Returns the report with the progress of each run at its top. `written` is the local time of the newest record.
std::string watched_page(std::string_view title, std::span<const Run> runs, const Comparison& comparison,
                         std::string_view written);

// Returns the page that is shown before the first step. `reason` says what is missing.
std::string waiting_page(std::string_view title, std::string_view reason);

}  // namespace octet::report
