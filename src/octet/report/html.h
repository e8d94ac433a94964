// Writes report.html: one file with inline SVG and CSS that needs no network and no script. It has a light, a dark and a print style.
#pragma once

#include <filesystem>
#include <span>
#include <string>

#include "octet/report/run.h"
#include "octet/report/summary.h"

namespace octet::report {

// HTML that a page shows in addition to the report itself.
struct PageExtras {
  std::string head{};  // goes to the end of <head>
  std::string top{};   // goes under the title
};

// Renders `runs`, whose comparison is `comparison`. Text from the runs is escaped. Empty runs and numbers that are not finite leave gaps.
std::string render_html(std::string_view title, std::span<const Run> runs, const Comparison& comparison, const PageExtras& extras = {});

// Writes report.html and report.json to `directory`, each atomically.
void write_report(const std::filesystem::path& directory, std::string_view title, std::span<const Run> runs,
                  const Comparison& comparison);

}  // namespace octet::report
