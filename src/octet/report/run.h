// A run as its files tell it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "octet/telemetry/metrics.h"

namespace octet::report {

struct Run {
  telemetry::RunInfo info;
  std::vector<telemetry::StepMetrics> metrics;   // steps strictly ascending
  std::vector<telemetry::HealthSample> health;   // steps ascending; empty without FP8
  std::int64_t broken_lines = 0;                 // lines passed over while reading
};

// Reads `directory`/metrics.jsonl, and run.json and fp8_health.jsonl where there are any. A run without run.json is named
// after its folder. Where a step comes twice, the later record counts. Throws Error{data} "PATH: reason" when there is no
// metrics.jsonl or it holds no record.
Run read_run(const std::filesystem::path& directory);

}  // namespace octet::report
