#include "octet/report/held_out.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "octet/report/charts.h"
#include "octet/report/page.h"
#include "octet/report/text_table.h"

namespace octet::report {
namespace {

// The loss of a set over the steps that evaluated it.
std::vector<Point> points_of_set(const Run& run, const std::string& name) {
  std::vector<Point> points;
  for (const telemetry::StepMetrics& line : run.metrics) {
    const double loss = number_named(line.eval_losses, name);
    if (std::isfinite(loss)) points.push_back({static_cast<double>(line.step), loss});
  }
  return points;
}

std::string chart_of_set(const std::vector<Shown>& shown, const std::string& name) {
  LineChart chart{.description = "held-out loss of " + name + " over the steps",
                  .series = {},
                  .x_label = "step",
                  .y_label = name,
                  .y_low = 0,
                  .y_high = 0,
                  .x_high = last_step(shown),
                  .x_text = step_text,
                  .y_text = [](double y) { return number(y, 4); },
                  .width = 520,
                  .height = 300};
  for (const Shown& s : shown) {
    const std::vector<Point> points = points_of_set(*s.run, name);
    chart.series.push_back({.name = s.row->label,
                            .colour = s.colour,
                            .style = s.dashed ? "dashed" : "",
                            .raw = {},
                            .line = points,
                            .marks = pick(points, kMaxRings)});
  }
  std::tie(chart.y_low, chart.y_high) = value_range(chart.series, chart.y_kind);
  return draw(chart);
}

}  // namespace

std::vector<std::string> held_out_names(const Comparison& comparison) {
  std::vector<std::string> names;
  for (const Row& row : comparison.rows) {
    for (const auto& [name, loss] : row.summary.eval_losses) {
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    }
  }
  return names;
}

std::string render_held_out(const Comparison& comparison) {
  const std::vector<std::string> names = held_out_names(comparison);
  if (names.empty()) return "";
  std::vector<std::vector<std::string>> lines{{"held-out loss"}};
  for (const std::string& name : names) lines[0].insert(lines[0].end(), {name, "higher"});
  for (const Row& row : comparison.rows) {
    lines.push_back({row.label});
    for (const std::string& name : names) {
      lines.back().push_back(text_number(number_named(row.summary.eval_losses, name), 4));
      lines.back().push_back(text_percent(number_named(row.eval_losses_pct, name), 2));
    }
  }
  return text_table(lines);
}

std::string held_out_section(const std::vector<Shown>& shown, const Comparison& comparison) {
  const std::vector<std::string> names = held_out_names(comparison);
  if (names.empty()) return "";
  std::string head, body, charts;
  for (const std::string& name : names) {
    put(head, "<th>{}</th>", escape(name));
    put(charts, "<div><figure>{}</figure></div>", chart_of_set(shown, name));
  }
  for (const Shown& s : shown) {
    put(body, "<tr{}><td class=\"name\"><span class=\"swatch {}{}\"></span>{}</td>", s.row->is_repeat ? " class=\"repeat\"" : "",
        s.colour, s.dashed ? " dashed" : "", escape(s.row->label));
    for (const std::string& name : names) {
      body += compared_cell(name, number(number_named(s.row->summary.eval_losses, name), 4),
                            number_named(s.row->eval_losses_pct, name), 2, -1, 0.5);
    }
    body += "</tr>";
  }
  return fmt::format(
      "<section><h2>Held-out sets</h2><p class=\"hint\">The loss of the last evaluation of each set, and below it each "
      "evaluation. Small figures: difference from the baseline.</p><table class=\"cards\"><thead><tr><th></th>{}</tr></thead>"
      "<tbody>{}</tbody></table></section><section class=\"pair\">{}</section>",
      head, body, charts);
}

}  // namespace octet::report
