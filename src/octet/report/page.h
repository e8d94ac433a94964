// Helpers that the sections of report.html share: appending text, formatting numbers, table cells.
#pragma once

#include <fmt/format.h>

#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "octet/report/equal_loss.h"

namespace octet::report {

template <class... Args>
void put(std::string& out, fmt::format_string<Args...> format, Args&&... args) {
  fmt::format_to(std::back_inserter(out), format, std::forward<Args>(args)...);
}

// Format a number. A number that is not finite becomes a dash.
std::string number(double value, int decimals);
std::string count_or_dash(double value);
std::string gib_or_dash(double gib);
std::string share_or_dash(double pct);  // "5.0%"
// Formats a difference: "+0.12%", "−0.12%". "0.00%" if it rounds to zero, "" if it is not finite.
std::string percent(double value, int decimals);

// A cell of a table. On a phone each row is shown as a card, and `column` is shown above the value.
std::string cell(std::string_view column, std::string_view content, const char* css_class = "");

// A cell with a value and, below it, its difference from the baseline in per cent. `sign` is 1 if more is better and -1 if less is
// better; it decides the colour. A difference within `noise` has no colour.
std::string compared_cell(std::string_view column, const std::string& value, double pct, int decimals, double sign, double noise);

// A cell with a speed-up at equal loss, "1.46×", and below it its noise, "±2.1%". The cell of a baseline has a dash.
std::string speedup_cell(const std::optional<EqualLoss>& equal);

}  // namespace octet::report
