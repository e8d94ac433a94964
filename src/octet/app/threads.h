#pragma once

#include "octet/train/config.h"

namespace octet::app {

// Sets the number of threads: run.threads, or this rank's share of the cores that `local_ranks` ranks of this host divide.
void use_threads(const train::Config& config, int local_ranks = 1);

}  // namespace octet::app
