// The curves of runs, as charts that a page and a picture share.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "octet/report/charts.h"
#include "octet/report/run.h"
#include "octet/report/summary.h"

namespace octet::report {

// A run and how all charts and tables show it. Runs are in the order of the comparison's rows.
struct Shown {
  const Run* run;
  const Row* row;
  std::string colour;
  bool dashed;
};
std::vector<Shown> shown_runs(std::span<const Run> runs, const Comparison& comparison);

// Returns the number of tokens in each step of a run, or 0 if it is unknown or has changed during the run.
std::int64_t tokens_of_each_step(const Run& run);
// Return the numbers of a run over its steps, raw and smoothed. `share` is the deviation of the Gaussian window as a share of
// the run.
std::vector<Point> points_of(const Run& run, double (*get)(const telemetry::StepMetrics&));
std::vector<Point> smooth_line(const std::vector<Point>& points, double share = 0.01);
double last_step(const std::vector<Shown>& shown);
// Returns "step 1,200" for a value on the axis.
std::string step_text(double step);
// Returns the range of a chart. It covers all lines and marks, and the raw values except outliers.
std::pair<double, double> value_range(const std::vector<Series>& series, ScaleKind kind);

// The most points of a curve and the most rings of held-out losses that a chart draws for a run.
inline constexpr std::size_t kMaxPoints = 900, kMaxRings = 40;

LineChart loss_chart(const std::vector<Shown>& shown);
// Returns the last tenth of the same curves, where the recipes differ by less than the width of a line, or nothing if no curve
// has two points there.
std::optional<LineChart> loss_close_up(const LineChart& whole);
// Returns the chart of 100 * (loss / baseline's loss - 1) at the steps that both have, or nothing if no run has the same job as
// its baseline.
std::optional<LineChart> gap_chart(const std::vector<Shown>& shown, const Comparison& comparison);

}  // namespace octet::report
