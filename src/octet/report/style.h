// The style of report.html and of pictures: colours for light and dark, and the CSS rules that use them.
#pragma once

#include <cstdint>
#include <string>

namespace octet::report {

enum class Theme : std::uint8_t { light, dark };

// The style sheet of report.html for light, dark and print.
std::string page_style();

// The rules for charts only, with one theme's colours written out, because many programs that show SVG do not support CSS variables.
std::string chart_style(Theme theme);

// Looks up a colour of the theme by name: "page", "ink", "rule", "c0", ...
std::string colour_of(Theme theme, const std::string& name);

}  // namespace octet::report
