// The GPUs that `octet plan` knows, and "256xH100".
#pragma once

#include <string>

#include "octet/plan/cluster.h"

namespace octet::app {

// `nodes` 0: of 8 GPUs, or one of fewer. Throws Error{config} for what is no cluster.
plan::Cluster parse_cluster(const std::string& gpus, int nodes);

}  // namespace octet::app
