#pragma once

#include "octet/train/config.h"

namespace octet::app {

// Gives the run the threads it asks for: run.threads, or one per core.
void use_threads(const train::Config& config);

}  // namespace octet::app
