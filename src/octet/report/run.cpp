#include "octet/report/run.h"

#include <algorithm>
#include <system_error>

#include "octet/base/directory.h"
#include "octet/base/require.h"
#include "octet/telemetry/jsonl.h"

namespace octet::report {
namespace {
std::string folder_name(const std::filesystem::path& directory) {
  const auto normal = std::filesystem::absolute(directory).lexically_normal();
  const auto name = normal.has_filename() ? normal.filename() : normal.parent_path().filename();
  return name.empty() ? directory.string() : name.string();
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

  const auto health_path = directory / "fp8_health.jsonl";
  if (path_exists(health_path)) {
    auto health = telemetry::read_jsonl<telemetry::HealthSample>(health_path);
    run.broken_lines += health.broken_lines;
    for (auto& record : health.records) {
      while (!run.health.empty() && run.health.back().step > record.step) run.health.pop_back();
      run.health.push_back(std::move(record));
    }
  }

  const auto info_path = directory / "run.json";
  if (path_exists(info_path)) run.info = telemetry::read_run_info(info_path);
  if (run.info.name.empty()) run.info.name = folder_name(directory);
  return run;
}

}  // namespace octet::report
