// Shared by both ways of `octet compare`: runs in one process, and runs on several numbers of ranks.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "octet/app/commands.h"
#include "octet/base/clock.h"
#include "octet/report/run.h"
#include "octet/train/config.h"
#include "octet/train/signals.h"

namespace octet::app {

// Folder of the runs and the report.
std::filesystem::path output_of(const CompareArgs& args, const train::Config& config);

// Throws Error{config} if the folder is that of a run, because `octet report` would show only this run.
void demand_no_run(const std::filesystem::path& output);

// training.steps, or the steps that training.epochs take with this batch.
std::int64_t steps_of_comparison(const train::Config& config);

// Prints which of several runs begins, and about how long the remaining runs will take, estimated from those that have ended.
class RunCount {
 public:
  explicit RunCount(std::size_t runs) : runs_(runs) {}
  // "run 2 of 3: fp8_delayed, about 1m02s to go".
  void begin(const std::string& label);

 private:
  std::size_t runs_, begun_ = 0;
  Clock::time_point start_ = Clock::now();
};

// Writes the report into the folder of the runs and prints its table.
void show_comparison(const CompareArgs& args, const train::Config& config, const std::vector<report::Run>& runs);

// Runs every recipe on every number of ranks of args.gpus, each like `octet launch -n N -- train`. The batch of a rank stays
// the same: training.global_batch_size is that of the smallest number and grows with the ranks. A run that was stopped
// continues; a run that was made with other settings starts anew. Returns the exit code.
int compare_ranks(const CompareArgs& args, const train::Config& config, const train::StopOutsideTraining& stops);

}  // namespace octet::app
