#include "octet/report/equal_loss.h"

#include <algorithm>
#include <cmath>

#include "octet/base/require.h"

namespace octet::report {
namespace {

constexpr std::size_t kMostFits = 1000;  // fits of all points take a few milliseconds
constexpr std::size_t kFewestLines = 5;  // a line through fewer points smooths nothing
constexpr double kReach = 5;             // the window's reach, in deviations

// The value at x of the line through the points, whose x ascend. Beyond the points it goes on from the last two.
double interpolate(const std::vector<Point>& points, double x) {
  if (points.empty()) return telemetry::kUnknown;
  if (points.size() == 1) return points.front().y;
  auto above =
      std::lower_bound(points.begin() + 1, points.end() - 1, x, [](const Point& point, double at) { return point.x < at; });
  const Point &a = *(above - 1), &b = *above;
  return a.y + (b.y - a.y) * (x - a.x) / (b.x - a.x);
}

// The root mean square of the difference between the two curves over the last tenth of the first one's steps. NaN if the second
// does not reach them.
double difference_at_end(const LossCurve& baseline, const LossCurve& repeat) {
  double sum = 0, count = 0;
  for (const Point& point : baseline.smoothed()) {
    if (!(point.x > 0.9 * baseline.last_step()) || point.x > repeat.last_step()) continue;
    const double difference = interpolate(repeat.smoothed(), point.x) - point.y;
    sum += difference * difference;
    ++count;
  }
  return count > 0 ? std::sqrt(sum / count) : telemetry::kUnknown;
}

// d of equal_loss.h from the scatter of the losses alone.
double deviation(const LossCurve& slower, const LossCurve& faster, double step) {
  const LossCurve::Fit a = slower.fit(slower.last_step()), b = faster.fit(step);
  const std::vector<Point>&of_slower = slower.smoothed(), &of_faster = faster.smoothed();
  double sum = 0;
  for (std::size_t i = 0, j = 0; i < of_slower.size() || j < of_faster.size();) {
    const double at_i = i < of_slower.size() ? of_slower[i].x : INFINITY, at_j = j < of_faster.size() ? of_faster[j].x : INFINITY;
    double term = 0;
    if (at_i <= at_j) {
      if (a.weight(i) != 0) term += a.weight(i) * slower.scatter(i);
      ++i;
    }
    if (at_j <= at_i) {
      if (b.weight(j) != 0) term -= b.weight(j) * faster.scatter(j);
      ++j;
    }
    sum += term * term;
  }
  return std::sqrt(sum);
}

}  // namespace

LossCurve::LossCurve(const Run& run) {
  const std::vector<double> times = training_times(run);
  times_.push_back({report::steps_before(run), 0});
  double surplus_s = 0;
  if (run.metrics.size() > 1) {
    const telemetry::StepMetrics &first = run.metrics[0], &second = run.metrics[1];
    surplus_s = std::max(0.0, first.step_time_s - second.step_time_s) * (static_cast<double>(first.step) - steps_before());
  }
  for (std::size_t i = 0; i < times.size(); ++i) {
    const telemetry::StepMetrics& line = run.metrics[i];
    if (line.step == 0) continue;
    times_.push_back({static_cast<double>(line.step), times[i] - surplus_s});
    if (std::isfinite(line.loss)) losses_.push_back({static_cast<double>(line.step), line.loss});
  }
  const telemetry::StepMetrics* const end = final_line(run);
  if (!end || !std::isfinite(end->loss)) {
    flaw_ = "its last loss is not finite";
  } else if (losses_.size() < kFewestLines) {
    flaw_ = concat("it has logged fewer than ", kFewestLines, " losses");
  } else if (!(times_.back().y > 0)) {
    flaw_ = "its step times are unknown";
  } else if (std::any_of(losses_.begin(), losses_.end(), [](const Point& p) { return std::abs(p.y) > 1e100; })) {
    flaw_ = "its losses are too large to compare";
  }
  const double last_step = losses_.empty() ? 0 : losses_.back().x;
  losses_ = thin(losses_, kMostFits);
  if (!flaw_.empty()) return;
  const double steps = losses_.back().x - losses_.front().x;
  width_ = std::max(steps / 40, 2 * steps / static_cast<double>(losses_.size() - 1));
  for (const Point& point : losses_) smoothed_.push_back({point.x, fit(point.x).value});
  smoothed_.back() = {last_step, fit(last_step).value};
}

LossCurve::Fit LossCurve::fit(double step, double widths) const {
  const double h = widths * width_;
  const auto begin =
      std::find_if(losses_.begin(), losses_.end(), [&](const Point& point) { return point.x >= step - kReach * h; });
  Fit fit{.first = static_cast<std::size_t>(begin - losses_.begin())};
  double s0 = 0, s1 = 0, s2 = 0, y0 = 0, y1 = 0;
  for (auto point = begin; point != losses_.end() && point->x <= step + kReach * h; ++point) {
    const double d = (point->x - step) / h, weight = point->count * std::exp(-0.5 * d * d);
    fit.weights.push_back(weight);
    s0 += weight;
    s1 += weight * d;
    s2 += weight * d * d;
    y0 += weight * point->y;
    y1 += weight * d * point->y;
  }
  const double determinant = s0 * s2 - s1 * s1;
  const bool alone = !(determinant > 1e-12 * s0 * s0);  // all other lines are too far away, so there is a mean but no slope
  fit.value = alone ? y0 / s0 : (s2 * y0 - s1 * y1) / determinant;
  fit.slope = alone ? 0 : (s0 * y1 - s1 * y0) / determinant / h;
  for (std::size_t i = 0; i < fit.weights.size(); ++i) {
    fit.weights[i] *= alone ? 1 / s0 : (s2 - s1 * (losses_[fit.first + i].x - step) / h) / determinant;
  }
  return fit;
}

double LossCurve::step_of(double loss) const {
  const auto above = std::find_if(smoothed_.rbegin(), smoothed_.rend(), [&](const Point& point) { return point.y > loss; });
  if (above == smoothed_.rend() || above == smoothed_.rbegin()) return telemetry::kUnknown;
  const Point &before = *above, &after = *(above - 1);
  return before.x + (after.x - before.x) * (before.y - loss) / (before.y - after.y);
}

double LossCurve::time_at(double step) const { return interpolate(times_, step); }

double LossCurve::step_time_at(double step) const {
  const double low = std::max(step - width_, steps_before()), high = std::min(step + width_, times_.back().x);
  return (time_at(high) - time_at(low)) / (high - low);
}

double LossCurve::scatter(std::size_t i) const {
  const Fit own = fit(losses_[i].x);
  const double others = 1 - own.weight(i);  // 0 if there are none
  return others > 1e-9 ? (losses_[i].y - own.value) / others : 0;
}

EqualLoss equal_loss(const LossCurve& run, const LossCurve& baseline, const LossCurve* repeat) {
  EqualLoss result;
  if (!run.flaw().empty() || !baseline.flaw().empty()) {
    const std::string& flaw = baseline.flaw();
    const std::string of_baseline = flaw.starts_with("its") ? "'s" + flaw.substr(3) : flaw.substr(flaw.empty() ? 0 : 2);
    result.reason = run.flaw().empty() ? "the baseline" + of_baseline : run.flaw();
    return result;
  }
  const bool run_is_slower = run.last_loss() > baseline.last_loss();
  const LossCurve &slower = run_is_slower ? run : baseline, &faster = run_is_slower ? baseline : run;
  result.loss = slower.last_loss();
  const double of_slower = slower.step_of(result.loss), of_faster = faster.step_of(result.loss);
  if (!(of_slower > 0.5 * (slower.steps_before() + slower.last_step()))) {
    result.reason = concat("the loss of ", run_is_slower ? "this run" : "the baseline", " rose again to its last value");
    return result;
  }
  if (std::isnan(of_faster)) {
    result.reason = concat(run_is_slower ? "the baseline" : "this run", " begins below the last loss of the other one");
    return result;
  }
  const double begin = std::max(run.steps_before(), baseline.steps_before());
  if (!(std::min(of_slower, of_faster) > begin)) {
    result.reason = "one of the two runs reaches this loss before the other one begins";
    return result;
  }
  const auto time_of = [&](const LossCurve& curve, double step) { return curve.time_at(step) - curve.time_at(begin); };
  result.time_s = time_of(run, run_is_slower ? of_slower : of_faster);
  result.baseline_time_s = time_of(baseline, run_is_slower ? of_faster : of_slower);
  result.speedup = result.baseline_time_s / result.time_s;

  const double slope = faster.fit(of_faster, 2).slope;
  if (slope < 0) {
    const double of_repeat = repeat && repeat->flaw().empty() ? difference_at_end(baseline, *repeat) : telemetry::kUnknown;
    const double of_scatter = deviation(slower, faster, of_faster);
    result.repeated = std::isfinite(of_repeat);
    result.noise_from = of_repeat > of_scatter || std::isnan(of_scatter) ? "repeat" : "scatter";
    const double steps = std::fmax(of_repeat, of_scatter) / -slope;
    result.noise_pct = 100 * steps * faster.step_time_at(of_faster) / time_of(faster, of_faster);
  }
  return result;
}

}  // namespace octet::report
