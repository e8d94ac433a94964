// Whether the checkpoints of a run will fit onto the disk.
#pragma once

#include <cstdint>

#include "octet/train/config.h"

namespace octet::train {

// Throws Error{does_not_fit} if run.output_dir has no room for the next checkpoint of `each` bytes. Warns if the checkpoints that are kept
// at a time between `step` and the last of `steps` will not fit.
void check_space(const Config& config, std::uint64_t each, std::int64_t step, std::int64_t steps);

}  // namespace octet::train
