// Says what differs between two runs that affects their losses. A report compares losses only if nothing but the recipe and
// settings of training differ.
//
// Each function returns the differences as words, "parameters and sequence length", or "" if there are none. A property that is
// unknown for one of the two runs, for example because it has no run.json, does not count as a difference.
#pragma once

#include <string>
#include <string_view>

#include "octet/report/run.h"

namespace octet::report {

// Returns what differs in the model, the size of batches or the training text.
std::string other_job(const Run& run, const Run& baseline);
// Returns what differs in the devices and the number of ranks, on which speeds depend.
std::string other_hardware(const Run& run, const Run& baseline);
// Returns why two runs of the same job may have processed different batches.
std::string other_batches(const Run& run, const Run& baseline);
// Returns what differs in the held-out text of two runs of the same job, for the set with this name, or for all sets on which
// eval_loss depends if the name is empty.
std::string other_held_out(const Run& run, const Run& baseline, std::string_view set = "");
// Returns the precision settings that changed during the run, as run.json records them: `step 20: precision.recipe "bf16" ->
// "mxfp8"`.
std::string other_precision_before(const Run& run);

}  // namespace octet::report
