#include "octet/report/attempts.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "octet/base/utc.h"
#include "octet/report/page.h"
#include "octet/report/svg.h"
#include "octet/telemetry/format.h"

namespace octet::report {
namespace {

using telemetry::Attempt;
using telemetry::format_count;
using telemetry::format_duration;
using telemetry::TimeOfAttempts;

constexpr std::size_t kRows = 20;  // of the table

struct Part {
  const char* what;
  const char* css_class;  // the shades of style.h
  double TimeOfAttempts::*seconds;
};
constexpr std::array<Part, 6> kParts = {Part{"steps that the run still has", "h5", &TimeOfAttempts::kept},
                                        Part{"steps that were lost and done again", "t6", &TimeOfAttempts::again},
                                        Part{"start, until the first step", "t3", &TimeOfAttempts::start},
                                        Part{"from the last step until the fault was noticed", "t7", &TimeOfAttempts::unnoticed},
                                        Part{"stop, after the fault was noticed", "t8", &TimeOfAttempts::stop},
                                        Part{"no ranks ran, or no supervisor recorded them", "empty", &TimeOfAttempts::between}};

// One bar from the first start to the last end. Within an attempt the parts stand in the order in which they come.
std::string timeline_of(const std::vector<Attempt>& attempts, double all) {
  std::string out =
      "<svg class=\"chart\" height=\"26\" viewBox=\"0 0 1000 26\" preserveAspectRatio=\"none\" role=\"img\" "
      "aria-label=\"Timeline of the attempts\"><rect class=\"empty\" width=\"1000\" height=\"26\"/>";
  const double begin = seconds_of_utc(attempts.front().started).value_or(0);
  double before = 0;  // the end of the attempt before
  for (std::size_t i = 0; i < attempts.size(); ++i) {
    if (attempts[i].ended.empty()) continue;
    const TimeOfAttempts time = time_of(attempts[i], telemetry::kept_step(attempts, i));
    double at = std::max(before, seconds_of_utc(attempts[i].started).value_or(begin) - begin);
    const double from = at;
    for (const Part& part : {kParts[2], kParts[0], kParts[1], kParts[3], kParts[4]}) {
      const double seconds = time.*part.seconds;
      if (seconds > 0) {
        put(out, "<rect class=\"{}\" x=\"{:.2f}\" width=\"{:.2f}\" height=\"26\"/>", part.css_class, 1000 * at / all,
            1000 * seconds / all);
      }
      at += seconds;
    }
    put(out,
        "<rect class=\"hit\" x=\"{:.2f}\" width=\"{:.2f}\" height=\"26\"><title>attempt {}: steps {} to {}\n{}</title></rect>",
        1000 * from / all, 1000 * (at - from) / all, attempts[i].number, format_count(attempts[i].from_step),
        format_count(attempts[i].last_step), attempts[i].code == 0 ? "done" : escape(attempts[i].what));
    before = at;
  }
  return out + "</svg>";
}

std::string parts_table(const TimeOfAttempts& time) {
  std::string rows;
  for (const Part& part : kParts) {
    put(rows,
        "<tr><td class=\"name\"><svg class=\"chart\" style=\"display:inline-block;width:14px;margin-right:8px\" "
        "height=\"10\"><rect "
        "class=\"{}\" width=\"14\" height=\"10\"/></svg>{}</td>{}{}</tr>",
        part.css_class, part.what, cell("time", format_duration(time.*part.seconds)),
        cell("share", telemetry::format_share(time.*part.seconds / time.all)));
  }
  return fmt::format(
      "<table class=\"cards\"><thead><tr><th></th><th>time</th><th>share</th></tr></thead><tbody>{}</tbody></table>", rows);
}

std::string attempts_table(const std::vector<Attempt>& attempts) {
  std::string rows;
  for (std::size_t i = attempts.size() - std::min(attempts.size(), kRows); i < attempts.size(); ++i) {
    const Attempt& a = attempts[i];
    const auto first = a.seconds.find("first_step");
    put(rows, "<tr><td class=\"name\">{}</td>{}{}{}{}{}</tr>", a.number, cell("started", escape(a.started), "words"),
        cell("steps", fmt::format("{} to {}", format_count(a.from_step), format_count(a.last_step))),
        cell("first step after", first == a.seconds.end() ? "–" : format_duration(first->second)),
        cell("lost steps", format_count(telemetry::lost_steps(attempts, i))),
        cell("end",
             a.ended.empty() ? "not known"
             : a.code == 0   ? "done"
                             : escape(a.what),
             "words wrap"));
  }
  return fmt::format(
      "<table class=\"cards\"><thead><tr><th>attempt</th><th class=\"words\">started</th><th>steps</th><th>first step after</th>"
      "<th>lost steps</th><th class=\"words\">end</th></tr></thead><tbody>{}</tbody></table>",
      rows);
}

}  // namespace

std::string draw_attempts(const std::vector<Attempt>& attempts) {
  const TimeOfAttempts time = time_of(attempts);
  if (time.all <= 0) return "";
  return fmt::format("<p>{} of {} were productive.</p><figure>{}</figure>{}{}", telemetry::format_share(time.productive()),
                     format_duration(time.all), timeline_of(attempts, time.all), parts_table(time), attempts_table(attempts));
}

}  // namespace octet::report
