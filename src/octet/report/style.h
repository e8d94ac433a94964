// The looks of report.html and of pictures: colours for light and dark, and the rules that use them.
#pragma once

#include <cstdint>
#include <string>

namespace octet::report {

enum class Theme : std::uint8_t { light, dark };

// A page's style sheet: light, dark and paper.
std::string page_style();

// The rules of charts alone, with the colours of one theme written out: programs that draw SVG need not know variables.
std::string chart_style(Theme theme);

// A colour of the theme by its name: "page", "ink", "rule", "c0", ...
std::string colour_of(Theme theme, const std::string& name);

}  // namespace octet::report
