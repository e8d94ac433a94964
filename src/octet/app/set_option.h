// The option `--set` of commands that take keys of a run without starting one.
#pragma once

#include <string>
#include <vector>

#include "octet/train/config.h"

namespace octet::app {

// Applies the assignments. `used` lists what the command reads, as globs over keys. Throws Error{config} for other keys, for
// unknown ones, and for precision.recipe and run.device, which have options of their own.
void apply_set(train::Config& config, const std::vector<std::string>& assignments, const std::vector<std::string>& used);

}  // namespace octet::app
