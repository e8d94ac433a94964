// report.html: one file that needs no network and no script. Inline SVG and CSS, light and dark, fit for print.
#pragma once

#include <filesystem>
#include <span>
#include <string>

#include "octet/report/run.h"
#include "octet/report/summary.h"

namespace octet::report {

// What a page has beside the report itself, as HTML.
struct PageExtras {
  std::string head{};  // at the end of <head>
  std::string top{};   // a section under the title
};

// `comparison` is that of `runs`. Any text in the runs is escaped; empty runs and numbers that are not finite leave gaps.
std::string render_html(std::string_view title, std::span<const Run> runs, const Comparison& comparison, const PageExtras& extras = {});

// report.html and report.json in `directory`, each written atomically.
void write_report(const std::filesystem::path& directory, std::string_view title, std::span<const Run> runs,
                  const Comparison& comparison);

}  // namespace octet::report
