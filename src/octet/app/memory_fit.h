// The layout of a run that its device has room for; a run without one is refused before anything is allocated.
#pragma once

#include <string>

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

// The run with the first of train::layouts_allowed whose plan fits what is free now on the device of rank `where`: a GPU, or a
// machine's memory for all its ranks together. The snapshots of saves count in the machine's memory. Throws DoesNotFit.
train::Config fitting(const train::Config& config, const parallel::Mesh& mesh, const comm::RankEnvironment& where);

// What rank 0 finds fitting, on every rank; a collective of the world.
train::Config fitting_together(train::World& world, const train::Config& config, const comm::RankEnvironment& where);

}  // namespace octet::app
