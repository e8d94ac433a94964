// Time to equal loss: how many times less training time a run needs than its baseline to reach the same loss. Tokens/s says how
// fast a recipe computes; this number also counts what the recipe loses in each step.
//
// A line of metrics.jsonl has a step x, a loss l, and a time t: the sum of the step times up to it. The first step of a run
// also loads kernels and touches memory for the first time, which says nothing about the recipe. So the steps of the first line
// count at most as long as those of the second. S(x) is the smoothed loss: the value at x of the straight line that fits the
// losses l_i best when line i has the weight exp(-(x_i - x)^2 / (2 h^2)). h is a fortieth of the run's steps, but at least
// twice the distance of two lines; lines farther away than 5 h have no weight. S is linear in the losses: S(x) = sum of w_i(x)
// l_i.
//
//   L        the larger of the two last smoothed losses. The run that ends with it is the slower one, and both runs reach it.
//   X(L)     the step at which S comes down to L for the last time, interpolated between two lines
//   T(L)     the training time up to step X(L), interpolated likewise. It begins at step 0; if a run went on from a checkpoint of
//            another folder, at the first step that both runs have.
//   speedup  T(L) of the baseline / T(L) of the run
//
// Noise is one standard deviation of the speed-up, relative to it. The loss of the faster run is uncertain by some d at step
// X(L), which moves X(L) by d / |S'| steps and T(L) by as many times the mean time of the steps within h. S' is the slope of the
// same fit with 2 h for h. d comes from the scatter of the losses around S: with e_i = (l_i - S(x_i)) / (1 - w_i(x_i)), the
// distance of line i from a fit without it,
//
//   d^2 = sum over steps of (w_i(end) e_i of the slower run - w_i(X) e_i of the faster run)^2
//
// Runs that process the same batch at the same step have common scatter, which the difference cancels. Scatter does not show that
// two runs of one recipe drift apart. So if the baseline was trained twice, d is at least the root mean square of the difference
// between the smoothed losses of the baseline and its repeat, over the last tenth of the steps. That alone would be too small:
// most of these steps lie inside the runs, where smoothing removes more of the scatter than at their ends.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "octet/report/run.h"
#include "octet/report/svg.h"
#include "octet/telemetry/metrics.h"

namespace octet::report {

// A number is NaN if it is unknown.
struct EqualLoss {
  double loss = telemetry::kUnknown;             // L
  double time_s = telemetry::kUnknown;           // T(L) of the run
  double baseline_time_s = telemetry::kUnknown;  // T(L) of the baseline
  double speedup = telemetry::kUnknown;
  double noise_pct = telemetry::kUnknown;
  std::string noise_from{};  // "repeat", "scatter", or "" if the noise is unknown
  bool repeated = false;     // whether a repeat of the baseline took part in the noise
  std::string reason{};      // why there is no speed-up, as the end of a sentence; "" if there is one
};

// The training loss of a run over its steps, smoothed.
class LossCurve {
 public:
  explicit LossCurve(const Run& run);

  // Why the curve has no end that could be compared, or "".
  const std::string& flaw() const { return flaw_; }
  double last_loss() const { return smoothed_.back().y; }
  double last_step() const { return smoothed_.back().x; }
  double steps_before() const { return times_.front().x; }  // of run.h
  // The smoothed losses at the logged steps. If there are many lines, each point stands for the mean of several, with a weight
  // for each of them; the last point is at the last line.
  const std::vector<Point>& smoothed() const { return smoothed_; }

  struct Fit {
    double value = 0, slope = 0;
    std::size_t first = 0;        // point of smoothed()
    std::vector<double> weights;  // of the losses in `value`, beginning with loss `first`; all other losses have weight 0
    double weight(std::size_t i) const { return i >= first && i - first < weights.size() ? weights[i - first] : 0; }
  };
  // The weighted line through the losses around a step. `widths` is the deviation of the window in units of h.
  Fit fit(double step, double widths = 1) const;
  // The step at which the smoothed loss comes down to `loss` for the last time. NaN if it is never above `loss`, or is above it
  // at the end.
  double step_of(double loss) const;
  double time_at(double step) const;       // seconds of training from steps_before() up to a step
  double step_time_at(double step) const;  // mean seconds of the steps within h of a step
  // The distance between the loss at a point of smoothed() and a fit without this loss.
  double scatter(std::size_t i) const;

 private:
  std::string flaw_;             // begins with "it " or "its "
  std::vector<Point> times_;     // seconds over steps
  std::vector<Point> losses_;    // the finite ones
  std::vector<Point> smoothed_;  // has a point for each of losses_
  double width_ = 0;             // h
};

// `repeat` is another run of the baseline's recipe on the same batches, or null.
EqualLoss equal_loss(const LossCurve& run, const LossCurve& baseline, const LossCurve* repeat);

}  // namespace octet::report
