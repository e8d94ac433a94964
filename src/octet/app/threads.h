#pragma once

#include "octet/train/config.h"

namespace octet::app {

// Gives the run the threads it asks for: run.threads, or its share of the cores that as many ranks of this host divide.
void use_threads(const train::Config& config, int local_ranks = 1);

}  // namespace octet::app
