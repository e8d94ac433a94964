#include "octet/report/text_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "octet/telemetry/format.h"

namespace octet::report {

std::string text_number(double value, int decimals) {
  return std::isfinite(value) ? telemetry::format_fixed(value, decimals) : "-";
}
std::string text_percent(double value, int decimals) {
  if (!std::isfinite(value)) return "-";
  const std::string digits = telemetry::format_fixed(std::abs(value), decimals) + "%";
  const bool zero = digits.find_first_not_of("0.%") == std::string::npos;
  return (zero ? "" : value < 0 ? "-" : "+") + digits;
}
std::string text_count(double value) { return std::isfinite(value) ? telemetry::format_count(value) : "-"; }

std::string text_table(const std::vector<std::vector<std::string>>& lines, std::size_t words) {
  std::vector<std::size_t> widths(lines.front().size());
  for (const auto& line : lines) {
    for (std::size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
  }
  std::string text;
  for (std::size_t n = 0; n < lines.size(); ++n) {
    text += fmt::format("{:<{}}", lines[n][0], widths[0]);
    for (std::size_t i = 1; i < widths.size(); ++i) {
      text += i < words ? fmt::format("  {:<{}}", lines[n][i], widths[i]) : fmt::format("  {:>{}}", lines[n][i], widths[i]);
    }
    text += '\n';
    if (n == 0) {
      std::size_t total = 0;
      for (const std::size_t width : widths) total += width + 2;
      text += std::string(total - 2, '-') + "\n";
    }
  }
  return text;
}

}  // namespace octet::report
