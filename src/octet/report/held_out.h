// Runs with named held-out sets ([[evaluation.source]]): shows the loss of each set. The main table shows only the set that
// decides.
#pragma once

#include <string>
#include <vector>

#include "octet/report/curves.h"
#include "octet/report/summary.h"

namespace octet::report {

// The names of the held-out sets of all runs, in the order in which they first occur. Empty if no run has named sets.
std::vector<std::string> held_out_names(const Comparison& comparison);

// Returns the table for a terminal: a line for each run, two columns for each set. "" without named sets.
std::string render_held_out(const Comparison& comparison);

// Returns the section of report.html: the same table, and the loss of each set over the steps. "" without named sets.
std::string held_out_section(const std::vector<Shown>& shown, const Comparison& comparison);

}  // namespace octet::report
