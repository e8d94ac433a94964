// Scaling: the same runs on several numbers of ranks, with the columns and the two pictures that articles on FP8 training print.
#pragma once

#include <span>
#include <string>

#include "octet/report/summary.h"

namespace octet::report {

// Renders one line for each run, sorted by the number of ranks, and a note that says with what each column is compared. Repeats
// of a run are left out. Ends with a newline.
std::string render_scaling(const Comparison& comparison);

// scaling_lead: the sentences under the title. scaling_section: the section of report.html with the table and with tokens/s and loss
// over the number of ranks. `colours` has a CSS class for each row. Both are empty if all runs have the same number of ranks.
std::string scaling_lead(const Comparison& comparison);
std::string scaling_section(const Comparison& comparison, std::span<const std::string> colours);

}  // namespace octet::report
