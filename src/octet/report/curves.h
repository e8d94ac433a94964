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

// A run and how it is shown everywhere. Runs are in the order of the comparison's rows.
struct Shown {
  const Run* run;
  const Row* row;
  std::string colour;
  bool dashed;
};
std::vector<Shown> shown_runs(std::span<const Run> runs, const Comparison& comparison);

// The number of tokens in each step of a run; 0 if it is unknown or has changed during the run.
std::int64_t tokens_of_each_step(const Run& run);
// The numbers of a run over its steps, and the same smoothed; `share`: the deviation of the Gaussian window as a share of the run.
std::vector<Point> points_of(const Run& run, double (*get)(const telemetry::StepMetrics&));
std::vector<Point> smooth_line(const std::vector<Point>& points, double share = 0.01);
double last_step(const std::vector<Shown>& shown);
// "step 1,200", of a value on the axis.
std::string step_text(double step);
// The range of a chart: all of the lines and marks, and the raw values without the wildest.
std::pair<double, double> value_range(const std::vector<Series>& series, ScaleKind kind);

// The most points of a curve and the most rings of held-out losses that a chart draws for a run.
inline constexpr std::size_t kMaxPoints = 900, kMaxRings = 40;

LineChart loss_chart(const std::vector<Shown>& shown);
// The last tenth of the same curves, where the recipes differ by less than the width of a line. Nothing if no curve has two
// points there.
std::optional<LineChart> loss_close_up(const LineChart& whole);
// 100 * (loss / baseline's loss - 1) at the steps that both have; nothing where no run has its baseline's job.
std::optional<LineChart> gap_chart(const std::vector<Shown>& shown, const Comparison& comparison);

}  // namespace octet::report
