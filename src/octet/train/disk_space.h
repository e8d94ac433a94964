// Checks whether a run's files will fit on the disk.
#pragma once

#include <cstdint>
#include <filesystem>

#include "octet/train/config.h"

namespace octet::train {

// What a run does if the disk has no room for its next checkpoint. If refusing would lose steps, it continues training and
// saves later.
enum class NoRoom { refuse, warn };

// Throws Error{does_not_fit}, or warns, if run.output_dir has no room for the next checkpoint of `each` bytes. Warns if the
// checkpoints that are kept at the same time between `step` and `steps` will not fit.
void check_space(const Config& config, std::uint64_t each, std::int64_t step, std::int64_t steps, NoRoom no_room);

// While the disk is full, waits until `folder` has room for the small files that a run writes when it begins, at most limit_s
// seconds. Then throws SystemError. Ignores other faults of the disk, which the next write reports.
void wait_for_room(const std::filesystem::path& folder, double limit_s);

}  // namespace octet::train
