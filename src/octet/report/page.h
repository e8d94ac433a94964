// What the sections of report.html share: how they are put together, and how they show numbers.
#pragma once

#include <fmt/format.h>

#include <iterator>
#include <string>
#include <string_view>
#include <utility>

namespace octet::report {

template <class... Args>
void put(std::string& out, fmt::format_string<Args...> format, Args&&... args) {
  fmt::format_to(std::back_inserter(out), format, std::forward<Args>(args)...);
}

// Of one that is not finite: a dash, or nothing where it is a percentage.
std::string number(double value, int decimals);
std::string count_or_dash(double value);
std::string gib_or_dash(double gib);
std::string share_or_dash(double pct);  // "5.0 %"
// "+0.12 %", "−0.12 %"; a difference that rounds to nothing has no sign.
std::string percent(double value, int decimals);

// A cell of a table. On a phone a row is a card, and each of its values stands below the name of its column.
std::string cell(std::string_view column, std::string_view content, const char* css_class = "");

// A value with, below it, how it compares. `sign`: 1 where more is good, -1 where it is bad; what is within `noise` has no
// colour.
std::string compared_cell(std::string_view column, const std::string& value, double pct, int decimals, double sign, double noise);

}  // namespace octet::report
