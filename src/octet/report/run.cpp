#include "octet/report/run.h"

#include <algorithm>
#include <cmath>
#include <system_error>

#include "octet/base/directory.h"
#include "octet/base/require.h"
#include "octet/telemetry/jsonl.h"

namespace octet::report {
namespace {
std::string folder_name(const std::filesystem::path& directory) {
  std::error_code unknown;  // as when the current folder has been removed; the result is then empty
  const auto normal = std::filesystem::absolute(directory, unknown).lexically_normal();
  const auto name = normal.has_filename() ? normal.filename() : normal.parent_path().filename();
  return name.empty() ? directory.string() : name.string();
}

// Reads the samples of a file if it exists. If training went back, the later samples replace the earlier ones.
template <class Sample>
void read_samples(const std::filesystem::path& path, std::vector<Sample>& samples, std::int64_t& broken_lines) {
  if (!path_exists(path)) return;
  auto contents = telemetry::read_jsonl<Sample>(path);
  broken_lines += contents.broken_lines;
  for (Sample& sample : contents.records) {
    while (!samples.empty() && samples.back().step > sample.step) samples.pop_back();
    samples.push_back(std::move(sample));
  }
}

// Returns the step from which the attempt that logged a step continued, or 0 if that is not known, as without a supervisor.
// That attempt is the last one that began before the step, because later attempts log their steps anew.
double went_on_from(const Run& run, std::int64_t step) {
  const auto attempt = std::find_if(run.attempts.rbegin(), run.attempts.rend(), [&](const telemetry::Attempt& a) {
    return a.seconds.contains("training") && a.from_step < step;
  });
  return attempt == run.attempts.rend() ? 0 : static_cast<double>(attempt->from_step);
}
}  // namespace

Run read_run(const std::filesystem::path& directory) {
  Run run;
  const auto metrics_path = directory / "metrics.jsonl";
  auto metrics = telemetry::read_jsonl<telemetry::StepMetrics>(metrics_path);
  demand(!metrics.records.empty(), ExitCode::data, metrics_path.string(), ": holds no step");
  run.broken_lines = metrics.broken_lines;
  for (auto& record : metrics.records) {
    while (!run.metrics.empty() && run.metrics.back().step >= record.step) run.metrics.pop_back();
    run.metrics.push_back(record);
  }

  read_samples(directory / "fp8_health.jsonl", run.health, run.broken_lines);
  read_samples(directory / "attention_health.jsonl", run.attention, run.broken_lines);
  read_samples(directory / "expert_loads.jsonl", run.experts, run.broken_lines);

  if (const auto path = directory / "stragglers.jsonl"; path_exists(path)) {
    auto stragglers = telemetry::read_jsonl<telemetry::StragglerRecord>(path);
    run.broken_lines += stragglers.broken_lines;
    run.stragglers = std::move(stragglers.records);
  }

  run.attempts = telemetry::without_refused(telemetry::Attempts(directory).read());
  const auto info_path = directory / "run.json";
  if (path_exists(info_path)) run.info = telemetry::read_run_info(info_path);
  if (run.info.name.empty()) run.info.name = folder_name(directory);
  return run;
}

const telemetry::StepMetrics* final_line(const Run& run) {
  if (run.metrics.empty()) return nullptr;
  const telemetry::StepMetrics& last = run.metrics.back();
  if (run.info.code != static_cast<int>(ExitCode::done)) return &last;
  const auto found =
      std::find_if(run.metrics.rbegin(), run.metrics.rend(), [](const auto& line) { return std::isfinite(line.loss); });
  // A step with a loss that is not finite counts as skipped.
  return found == run.metrics.rend() || found->skipped_steps != last.skipped_steps ? &last : &*found;
}

double steps_before(const Run& run) {
  if (run.metrics.empty()) return 0;
  const auto first = static_cast<double>(run.metrics[0].step);
  const double interval = run.metrics.size() > 1 ? static_cast<double>(run.metrics[1].step) - first : 1;
  return std::max(0.0, first - interval);
}

std::vector<double> training_times(const Run& run) {
  std::vector<double> times;
  double time = 0, previous = steps_before(run), mean_before = telemetry::kUnknown;
  for (const telemetry::StepMetrics& line : run.metrics) {
    // The time in a line is the mean over the steps since the line before, or since the step from which an attempt went on. Steps
    // between the two were in no line; they count like those before them.
    const auto step = static_cast<double>(line.step);
    const double from = std::isnan(mean_before) ? previous : std::max(previous, went_on_from(run, line.step));
    if (from > previous) time += mean_before * (from - previous);
    time += line.step_time_s * (step - from);  // unknown from the first line on that has none
    previous = step;
    mean_before = line.step_time_s;
    times.push_back(time);
  }
  return times;
}

}  // namespace octet::report
