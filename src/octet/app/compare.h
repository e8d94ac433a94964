// The parts of `octet compare` that both of its ways share: in one process, and on several numbers of ranks.
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

// Throws Error{config} if the folder is that of a run: `octet report` would show this run alone.
void demand_no_run(const std::filesystem::path& output);

// training.steps, or the steps that training.epochs take with this batch.
std::int64_t steps_of_comparison(const train::Config& config);

// Says which of several runs begins, and about how long all that are left will take, judged by those that have ended.
class RunCount {
 public:
  explicit RunCount(std::size_t runs) : runs_(runs) {}
  // "run 2 of 3: fp8_delayed, about 1m02s to go".
  void begin(const std::string& label);

 private:
  std::size_t runs_, begun_ = 0;
  Clock::time_point start_ = Clock::now();
};

// Writes the report beside the runs and prints its table.
void show_comparison(const CompareArgs& args, const train::Config& config, const std::vector<report::Run>& runs);

// Every recipe on every number of ranks of args.gpus, each run as `octet launch -n N -- train` makes it. The batch of a rank is
// kept: training.global_batch_size is that of the smallest number and grows with the ranks. A run that was stopped goes on, one
// that was made with other settings starts anew. Returns the exit code.
int compare_ranks(const CompareArgs& args, const train::Config& config, const train::StopOutsideTraining& stops);

}  // namespace octet::app
