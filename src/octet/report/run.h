// Reads the files of a run.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "octet/telemetry/attempts.h"
#include "octet/telemetry/metrics.h"
#include "octet/telemetry/stragglers.h"

namespace octet::report {

struct Run {
  telemetry::RunInfo info;
  std::vector<telemetry::StepMetrics> metrics;   // in strictly ascending order of steps
  std::vector<telemetry::HealthSample> health;   // in ascending order of steps; empty without FP8
  std::vector<telemetry::AttentionSample> attention;  // likewise
  std::vector<telemetry::ExpertSample> experts;       // likewise; empty without experts
  std::vector<telemetry::Attempt> attempts;      // of a supervised run
  std::vector<telemetry::StragglerRecord> stragglers;
  std::int64_t broken_lines = 0;                 // lines that could not be parsed and were skipped
};

// Reads `directory`/metrics.jsonl, and run.json, attempts/ and the other files of lines if they exist. A run without a run.json
// gets the name of its folder. If a step occurs twice, because training went back, the later records replace the earlier ones,
// except records of stragglers, which all stay. Throws Error{data} "PATH: reason" if there is no metrics.jsonl or it holds no
// step.
Run read_run(const std::filesystem::path& directory);

// Returns the line with the loss with which the run ended: the last line, or null if there is none. If the run is done and its last
// steps have no loss, because none of their tokens was trained on, it is the last line that has one.
const telemetry::StepMetrics* final_line(const Run& run);

// Returns the number of steps that were done before those of `run.metrics`: 0, or more if the run continued from a checkpoint
// of another folder. The first line is then assumed to cover as many steps as the second one, because no file says where the
// run continued; a single line covers one step.
double steps_before(const Run& run);

// Returns the seconds of training from steps_before() up to each line of `run.metrics`: the sum of the step times. It excludes
// evaluations, checkpoints, and steps that were repeated after a rollback or a resume. Steps that no line covers, because they
// ended before a resume and were not logged, count like those of the previous line, if run.attempts shows the resume.
std::vector<double> training_times(const Run& run);

}  // namespace octet::report
