// The same runs on several numbers of ranks: the columns that articles on training in FP8 print, and both of their pictures.
#pragma once

#include <span>
#include <string>

#include "octet/report/summary.h"

namespace octet::report {

// A line for each run, by the number of ranks, then in the order of the rows, and below it what each column is compared with.
// Repeats are left out. Ends with a newline.
std::string render_scaling(const Comparison& comparison);

// The sentences under the title, and the section of report.html: the table, tokens/s and the loss over the number of ranks.
// `colours`: a CSS class for each row. The section is empty where no numbers of ranks are compared.
std::string scaling_lead(const Comparison& comparison);
std::string scaling_section(const Comparison& comparison, std::span<const std::string> colours);

}  // namespace octet::report
