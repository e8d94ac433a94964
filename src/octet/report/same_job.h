// Says what differs between two runs that their losses depend on. A report compares only losses that nothing but the recipe and
// settings of training have changed.
//
// Each function returns the differences as words, "parameters and sequence length", or "" if there are none. What is not known of
// one of the two runs, for example because it has no run.json, is no difference.
#pragma once

#include <string>
#include <string_view>

#include "octet/report/run.h"

namespace octet::report {

// What differs in the model, the size of batches or the text that is trained on.
std::string other_job(const Run& run, const Run& baseline);
// What differs in the devices and the number of ranks, on which speeds depend.
std::string other_hardware(const Run& run, const Run& baseline);
// Why two runs of the same job may have seen other batches.
std::string other_batches(const Run& run, const Run& baseline);
// What differs in the held-out text of two runs of the same job, for the set of this name, or for all sets that eval_loss depends
// on if the name is empty.
std::string other_held_out(const Run& run, const Run& baseline, std::string_view set = "");
// The precision settings that changed during the run, as run.json says it: `step 20: precision.recipe "bf16" -> "mxfp8"`.
std::string other_precision_before(const Run& run);

}  // namespace octet::report
