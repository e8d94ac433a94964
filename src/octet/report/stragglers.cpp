#include "octet/report/stragglers.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "octet/report/page.h"
#include "octet/report/svg.h"
#include "octet/telemetry/format.h"

namespace octet::report {
namespace {

using telemetry::Attempt;
using telemetry::format_count;
using telemetry::StragglerRecord;

constexpr std::size_t kMostRows = 40;  // of the newest

struct Straggling {
  StragglerRecord begin;
  std::int64_t end_step = 0;
  bool recovered = false;
};

// The last step of the attempt in which something was recorded.
std::int64_t end_of_attempt(const StragglerRecord& record, const std::vector<Attempt>& attempts, std::int64_t last_step) {
  for (const Attempt& attempt : attempts) {
    if (!attempt.ended.empty() && attempt.started <= record.time && record.time <= attempt.ended) return attempt.last_step;
  }
  return last_step;
}

std::vector<Straggling> stragglings_of(const std::vector<StragglerRecord>& records, const std::vector<Attempt>& attempts,
                                       std::int64_t last_step) {
  std::vector<Straggling> all;
  std::map<std::int64_t, std::size_t> open;  // by rank
  for (const StragglerRecord& record : records) {
    const auto found = open.find(record.rank);
    if (record.is_slow()) {
      open[record.rank] = all.size();
      all.push_back({.begin = record, .end_step = std::max(record.step, end_of_attempt(record, attempts, last_step))});
    } else if (found != open.end()) {
      all[found->second].end_step = record.since_step;
      all[found->second].recovered = true;
      open.erase(found);
    }
  }
  return all;
}

std::string bar_of(const Straggling& s, std::int64_t last_step) {
  const auto at = [&](std::int64_t step) { return 200.0 * static_cast<double>(step) / static_cast<double>(last_step); };
  const double from = at(std::min(s.begin.since_step, last_step)), to = at(std::min(s.end_step, last_step));
  return fmt::format(
      "<svg class=\"chart\" style=\"display:inline-block;width:200px\" height=\"10\" role=\"img\" aria-label=\"Steps {0} to "
      "{1}\">"
      "<rect class=\"empty\" width=\"200\" height=\"10\"/><rect class=\"t6\" x=\"{2:.1f}\" width=\"{3:.1f}\" height=\"10\">"
      "<title>steps {0} to {1}</title></rect></svg>",
      format_count(s.begin.since_step), format_count(s.end_step), from, std::max(2.0, to - from));
}

// "1,215 (others 1,755)"
std::string beside(const std::optional<double>& own, const std::optional<double>& others) {
  if (!own) return "–";
  return format_count(*own) + (others ? fmt::format(" (others {})", format_count(*others)) : "");
}

}  // namespace

std::string draw_stragglers(const std::vector<StragglerRecord>& records, const std::vector<Attempt>& attempts,
                            std::int64_t last_step) {
  const std::vector<Straggling> all = stragglings_of(records, attempts, std::max<std::int64_t>(last_step, 1));
  std::string rows;
  for (std::size_t i = all.size() - std::min(all.size(), kMostRows); i < all.size(); ++i) {
    const StragglerRecord& r = all[i].begin;
    put(rows, "<tr><td class=\"name\">{}</td>{}{}{}{}{}{}{}{}</tr>", escape(r.name),
        cell("steps", bar_of(all[i], std::max<std::int64_t>(last_step, 1))), cell("since step", format_count(r.since_step)),
        cell("recovered", all[i].recovered ? "at step " + format_count(all[i].end_step) : "no"),
        cell("slower", fmt::format("{}%", number(r.slower_pct, 0))), cell("clock, MHz", beside(r.clock_mhz, r.clock_others_mhz)),
        cell("power, W", beside(r.power_w, r.power_others_w)), cell("°C", beside(r.temperature_c, r.temperature_others_c)),
        cell("clock held down by", r.slowed_by.empty() ? "–" : escape(r.slowed_by), "words"));
  }
  if (rows.empty()) return "";
  return fmt::format(
      "<table class=\"cards\"><thead><tr><th>rank</th><th>steps</th><th>since step</th><th>recovered</th><th>slower</th>"
      "<th>clock, MHz</th><th>power, W</th><th>°C</th><th class=\"words\">clock held down by</th></tr></thead>"
      "<tbody>{}</tbody></table>",
      rows);
}

}  // namespace octet::report
