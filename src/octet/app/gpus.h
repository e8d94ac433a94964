// The GPUs that `octet plan` knows, and texts such as "256xH100".
#pragma once

#include <string>

#include "octet/plan/cluster.h"

namespace octet::app {

// Returns the cluster. If `nodes` is 0, a node has 8 GPUs, or all of fewer. Throws Error{config} if `gpus` does not describe a
// cluster.
plan::Cluster parse_cluster(const std::string& gpus, int nodes);

}  // namespace octet::app
