// The parts of `octet report` that a page written once and one that is watched share.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "octet/app/commands.h"
#include "octet/report/run.h"
#include "octet/report/summary.h"

namespace octet::app {

// The runs' own folders, in the order named; a folder that holds several stands for these, by name. Throws Error{data}.
std::vector<std::filesystem::path> folders_of_runs(const std::vector<std::filesystem::path>& directories);

// Runs with the same name are called by their folders.
std::vector<report::Run> read_runs(const ReportArgs& args, const std::vector<std::filesystem::path>& folders);

// Name of the run that the others are compared with.
std::string baseline_of(const ReportArgs& args);

// Puts the baseline first, wherever it was named. A run "NAME-repeat" of NAME's recipe becomes the repeat of the run NAME.
void arrange(std::vector<report::Run>& runs, const std::string& baseline);

std::string title_of(const ReportArgs& args, const std::vector<report::Run>& runs);

// Serves the report until SIGINT, SIGTERM or SIGHUP. Returns the exit code.
int watch_runs(const ReportArgs& args);

}  // namespace octet::app
