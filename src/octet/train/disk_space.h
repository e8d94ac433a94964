// Whether a run's files will fit onto the disk.
#pragma once

#include <cstdint>
#include <filesystem>

#include "octet/train/config.h"

namespace octet::train {

// What a run does if the disk has no room for its next checkpoint. A run that would lose steps if it ended trains on and saves later.
enum class NoRoom { refuse, warn };

// Throws Error{does_not_fit}, or warns, if run.output_dir has no room for the next checkpoint of `each` bytes. Warns if the
// checkpoints that are kept at a time between `step` and the last of `steps` will not fit.
void check_space(const Config& config, std::uint64_t each, std::int64_t step, std::int64_t steps, NoRoom no_room);

// While the disk is full, waits until there is room in `folder` for the small files that a run writes when it begins, at most limit_s.
// Then throws SystemError. Other faults of the disk are left to whoever writes next.
void wait_for_room(const std::filesystem::path& folder, double limit_s);

}  // namespace octet::train
