// Shared by `octet report` when it writes a page once and when it serves one with --watch.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "octet/app/commands.h"
#include "octet/report/run.h"
#include "octet/report/summary.h"

namespace octet::app {

// Returns the runs' own folders, in the order given. A folder that holds several runs is replaced by these, sorted by name.
// Throws Error{data}.
std::vector<std::filesystem::path> folders_of_runs(const std::vector<std::filesystem::path>& directories);

// Reads the runs. Runs with the same name are renamed to their folders.
std::vector<report::Run> read_runs(const ReportArgs& args, const std::vector<std::filesystem::path>& folders);

// Returns the name of the run with which the others are compared.
std::string baseline_of(const ReportArgs& args);

// Moves the baseline to the front. A run "NAME-repeat" of NAME's recipe becomes the repeat of the run NAME.
void arrange(std::vector<report::Run>& runs, const std::string& baseline);

std::string title_of(const ReportArgs& args, const std::vector<report::Run>& runs);

// Serves the report until SIGINT, SIGTERM or SIGHUP. Returns the exit code.
int watch_runs(const ReportArgs& args);

}  // namespace octet::app
