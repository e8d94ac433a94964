// Chooses a layout of a run that fits into its device's memory. If none fits, the run is refused before anything is allocated.
#pragma once

#include <string>

#include "octet/base/control_group.h"
#include "octet/base/require.h"
#include "octet/comm/environment.h"
#include "octet/parallel/mesh.h"
#include "octet/train/config.h"
#include "octet/train/world.h"

namespace octet::app {

// A run that does not fit. Unlike other errors it has several lines: the plan by category and what helps.
class DoesNotFit : public Error {
 public:
  explicit DoesNotFit(const std::string& lines) : Error(ExitCode::does_not_fit, lines) {}
};

// Refuses a run on GPUs whose machine has too little memory. There all ranks together keep `snapshots` bytes of their saves, and
// with optimizer.offload `states` bytes of the optimizer's states. Nothing else of the plan counts these bytes.
void check_host(const HostMemory& memory, std::size_t states, std::size_t snapshots);

// Returns the run with the first of train::layouts_allowed whose plan fits into the free memory of rank `where`'s device: a
// GPU, or a machine's memory for all its ranks together. The snapshots of saves count as memory of the machine. Throws
// DoesNotFit.
train::Config fitting(const train::Config& config, const parallel::Mesh& mesh, const comm::RankEnvironment& where);

// Returns on every rank the run that rank 0 finds fitting. A collective of the world.
train::Config fitting_together(train::World& world, const train::Config& config, const comm::RankEnvironment& where);

}  // namespace octet::app
