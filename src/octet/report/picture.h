// Draws curves and table of runs as one self-contained SVG, for a README or an article.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "octet/report/run.h"
#include "octet/report/style.h"
#include "octet/report/summary.h"

namespace octet::report {

// The loss, the difference from the baseline below it, and a table next to them: tokens/s, % faster, final loss (the mean over
// the last tenth of the steps), % higher. 900 pixels wide. It needs no script, no network and no style sheet.
std::string render_picture(std::string_view title, std::span<const Run> runs, const Comparison& comparison, Theme theme);

// Whether a file that begins with `begin`, 64 bytes or more, is such a picture.
bool is_picture_of_runs(std::string_view begin);

}  // namespace octet::report
