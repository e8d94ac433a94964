#include "octet/report/page.h"

#include <algorithm>
#include <cmath>

#include "octet/report/svg.h"
#include "octet/telemetry/format.h"

namespace octet::report {

std::string number(double value, int decimals) { return std::isfinite(value) ? telemetry::format_fixed(value, decimals) : "–"; }

std::string count_or_dash(double value) { return std::isfinite(value) ? telemetry::format_count(value) : "–"; }

std::string gib_or_dash(double gib) { return std::isfinite(gib) && gib >= 0 ? telemetry::format_gib(gib) : "–"; }

std::string share_or_dash(double pct) { return std::isfinite(pct) ? fmt::format("{:.1f}%", pct) : "–"; }

std::string percent(double value, int decimals) {
  if (!std::isfinite(value)) return "";
  const std::string digits = telemetry::format_fixed(std::abs(value), decimals);
  const bool zero = digits.find_first_not_of("0.") == std::string::npos;
  return (zero ? "" : value < 0 ? "−" : "+") + digits + "%";
}

std::string cell(std::string_view column, std::string_view content, const char* css_class) {
  const std::string classes = *css_class ? fmt::format(" class=\"{}\"", css_class) : "";
  return fmt::format("<td{} data-column=\"{}\">{}</td>", classes, escape(column), content);
}

std::string compared_cell(std::string_view column, const std::string& value, double pct, int decimals, double sign, double noise) {
  if (!std::isfinite(pct)) return cell(column, value + "<small>&nbsp;</small>");
  const char* css_class = std::abs(pct) <= noise ? "" : pct * sign > 0 ? "good" : "bad";
  return cell(column, fmt::format("{}<small class=\"{}\">{}</small>", value, css_class, percent(pct, decimals)));
}

std::string speedup_cell(const std::optional<EqualLoss>& equal) {
  const bool known = equal && std::isfinite(equal->speedup), noisy = known && std::isfinite(equal->noise_pct);
  return cell("speed-up at equal loss", fmt::format("{}<small>{}</small>", known ? fmt::format("{:.2f}×", equal->speedup) : "–",
                                                    noisy ? fmt::format("±{:.1f}%", equal->noise_pct) : "&nbsp;"));
}

}  // namespace octet::report
