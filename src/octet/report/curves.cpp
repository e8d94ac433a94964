#include "octet/report/curves.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <tuple>

#include "octet/base/require.h"
#include "octet/report/page.h"
#include "octet/telemetry/format.h"

namespace octet::report {
namespace {
using telemetry::format_count;
using telemetry::StepMetrics;

constexpr int kCurveColours = 8;

std::string preferred_colour(const std::string& recipe) {
  static const std::vector<std::string> kRecipes{"bf16",        "fp8_delayed", "fp8_current", "fp8_block",
                                                 "fp8_rowwise", "mxfp8",       "fp32"};
  const auto found = std::find(kRecipes.begin(), kRecipes.end(), recipe);
  return found == kRecipes.end() ? "" : fmt::format("c{}", found - kRecipes.begin());
}

double loss_of(const StepMetrics& line) { return line.loss; }

std::string step_label(const std::vector<Shown>& shown) {
  const std::int64_t tokens = shown.empty() ? 0 : tokens_of_each_step(*shown.front().run);
  const bool same =
      std::all_of(shown.begin(), shown.end(), [&](const Shown& s) { return tokens_of_each_step(*s.run) == tokens; });
  return same && tokens > 0 ? fmt::format("step, {} tokens each", format_count(tokens)) : "step";
}
std::vector<Point> gap_points(const Run& run, const Run& baseline) {
  std::vector<Point> points;
  auto base = baseline.metrics.begin();
  for (const StepMetrics& line : run.metrics) {
    while (base != baseline.metrics.end() && base->step < line.step) ++base;
    if (base == baseline.metrics.end()) break;
    if (base->step == line.step) points.push_back({static_cast<double>(line.step), 100 * (line.loss / base->loss - 1)});
  }
  return points;
}

}  // namespace

// Lists repeats after all other runs, as the comparison does. Otherwise the order stays.
std::vector<Shown> shown_runs(std::span<const Run> runs, const Comparison& comparison) {
  std::vector<const Run*> ordered;
  for (const bool repeats : {false, true}) {
    for (const Run& run : runs) {
      if (run.info.repeat_of.empty() != repeats) ordered.push_back(&run);
    }
  }
  require(ordered.size() == comparison.rows.size(), "report: ", ordered.size(), " runs but ", comparison.rows.size(), " rows");
  std::vector<Shown> shown;
  std::set<std::string> taken;
  for (const Run* run : ordered) taken.insert(preferred_colour(run->info.recipe));
  std::set<std::string> used;
  int next = 0;
  for (std::size_t i = 0; i < ordered.size(); ++i) {
    const Row& row = comparison.rows[i];
    std::string colour = preferred_colour(ordered[i]->info.recipe);
    if (row.is_repeat) {
      const auto original = std::find_if(shown.begin(), shown.end(), [&](const Shown& s) {
        return s.row->summary.name == row.summary.repeat_of && s.row->summary.processes == row.summary.processes;
      });
      if (original != shown.end()) colour = original->colour;
    } else if (colour.empty() || used.count(colour) > 0) {
      for (int tries = 0; tries < kCurveColours; ++tries) {
        colour = fmt::format("c{}", next++ % kCurveColours);
        if (taken.insert(colour).second) break;
      }
    }
    if (colour.empty()) colour = "c0";
    used.insert(colour);
    shown.push_back({ordered[i], &row, colour, row.is_repeat});
  }
  return shown;
}

std::int64_t tokens_of_each_step(const Run& run) {
  const std::int64_t tokens = run.info.tokens_per_step;
  if (tokens <= 0 || run.metrics.empty()) return 0;
  const auto holds = [&](const StepMetrics& line) {
    return line.tokens_seen % tokens == 0 && line.tokens_seen / tokens == line.step;
  };
  return holds(run.metrics.front()) && holds(run.metrics.back()) ? tokens : 0;
}

std::vector<Point> points_of(const Run& run, double (*get)(const StepMetrics&)) {
  std::vector<Point> points;
  for (const StepMetrics& line : run.metrics) points.push_back({static_cast<double>(line.step), get(line)});
  return points;
}
std::vector<Point> smooth_line(const std::vector<Point>& points, double share) {
  const std::vector<Point> thinned = thin(points, kMaxPoints);
  return smooth(thinned, share * static_cast<double>(thinned.size()));
}

double last_step(const std::vector<Shown>& shown) {
  std::int64_t last = 0;
  for (const Shown& s : shown) last = std::max(last, s.row->summary.steps);
  return static_cast<double>(last);
}
std::string step_text(double step) { return "step " + format_count(step); }

std::pair<double, double> value_range(const std::vector<Series>& series, ScaleKind kind) {
  double low = INFINITY, high = -INFINITY;
  std::vector<double> raw;
  const auto usable = [&](double y) { return std::isfinite(y) && (kind == ScaleKind::linear || y > 0); };
  for (const Series& s : series) {
    for (const std::vector<Point>* points : {&s.line, &s.marks}) {
      for (const Point& point : *points) {
        if (!usable(point.y)) continue;
        low = std::min(low, point.y);
        high = std::max(high, point.y);
      }
    }
    for (const Point& point : s.raw) {
      if (usable(point.y)) raw.push_back(point.y);
    }
  }
  if (!raw.empty()) {
    low = std::min(low, quantile(raw, 0.005));
    high = std::max(high, quantile(raw, 0.995));
  }
  return {low, high};
}

LineChart loss_chart(const std::vector<Shown>& shown) {
  LineChart chart{.description = "training loss over the steps",
                  .series = {},
                  .x_label = step_label(shown),
                  .y_label = "loss, logarithmic",
                  .y_kind = ScaleKind::logarithmic,
                  .y_low = 0,
                  .y_high = 0,
                  .x_high = last_step(shown),
                  .x_text = step_text,
                  .y_text = [](double y) { return number(y, 4); },
                  .width = 700,
                  .height = 400,
                  .nothing = "no finite loss"};
  for (const Shown& s : shown) {
    const std::vector<Point> loss = points_of(*s.run, loss_of);
    Series series{.name = s.row->label,
                  .colour = s.colour,
                  .style = s.dashed             ? "dashed"
                           : s.row->is_baseline ? "thick"
                                                : "",
                  .raw = extremes(loss, kMaxPoints),
                  .line = smooth_line(loss)};
    if (s.dashed) series.raw.clear();
    for (const StepMetrics& line : s.run->metrics) {
      if (line.eval_loss && !s.dashed) series.marks.push_back({static_cast<double>(line.step), *line.eval_loss});
    }
    series.marks = pick(series.marks, kMaxRings);
    chart.series.push_back(std::move(series));
  }
  std::tie(chart.y_low, chart.y_high) = value_range(chart.series, chart.y_kind);
  return chart;
}

std::optional<LineChart> loss_close_up(const LineChart& whole) {
  LineChart chart = whole;
  chart.description = "training loss in the last tenth of the steps";
  chart.y_label = "the last tenth";
  chart.y_kind = ScaleKind::linear;
  chart.width = 352;
  for (Series& series : chart.series) {
    series.raw.clear();
    const auto early = [&](const Point& point) { return !(point.x > 0.9 * chart.x_high); };
    std::erase_if(series.line, early);
    std::erase_if(series.marks, early);
    if (series.style == "thick") series.style = "";
  }
  const auto is_curve = [](const Series& series) {
    return std::count_if(series.line.begin(), series.line.end(), [](const Point& p) { return std::isfinite(p.y); }) >= 2;
  };
  if (std::none_of(chart.series.begin(), chart.series.end(), is_curve)) return std::nullopt;
  std::vector<Series> lines = chart.series;  // held-out losses may be far away
  for (Series& series : lines) series.marks.clear();
  std::tie(chart.y_low, chart.y_high) = value_range(lines, chart.y_kind);
  const double margin = 0.06 * (chart.y_high - chart.y_low);
  chart.y_low -= margin;
  chart.y_high += margin;
  for (Series& series : chart.series) {
    std::erase_if(series.marks, [&](const Point& point) { return !(point.y >= chart.y_low && point.y <= chart.y_high); });
  }
  return chart;
}

std::optional<LineChart> gap_chart(const std::vector<Shown>& shown, const Comparison& comparison) {
  if (std::none_of(shown.begin(), shown.end(), [](const Shown& s) { return s.row->has_same_job(); })) return std::nullopt;
  LineChart chart{
      .description = "difference in training loss from the baseline over the steps",
      .series = {},
      .x_label = step_label(shown),
      .y_label = "% above " + comparison.baseline,
      .y_low = 0,
      .y_high = 0,
      .x_high = last_step(shown),
      .band = comparison.spread && std::isfinite(comparison.spread->mean_loss_pct) ? comparison.spread->mean_loss_pct : 0,
      .zero_line = true,
      .x_text = step_text,
      .y_text = [](double y) { return percent(y, 3); },
      .height = 320};
  std::vector<double> late;
  for (const Shown& s : shown) {
    if (!s.row->has_same_job()) continue;
    const std::vector<Point> gap = gap_points(*s.run, *shown[*s.row->baseline].run);
    chart.series.push_back({.name = s.row->label,
                            .colour = s.colour,
                            .style = s.dashed ? "dashed" : "",
                            .raw = {},
                            .line = smooth_line(gap, 0.025)});
    const auto& line = chart.series.back().line;
    // Leaves out the first twentieth: the loss falls so fast there that any two runs are far apart.
    for (std::size_t i = line.size() / 20; i < line.size(); ++i) late.push_back(line[i].y);
  }
  chart.y_low = std::min({quantile(late, 0) * 1.15, -0.1, -1.3 * chart.band});
  chart.y_high = std::max({quantile(late, 1) * 1.15, 0.1, 1.3 * chart.band});
  return chart;
}

}  // namespace octet::report
