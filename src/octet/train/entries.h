// What a checkpoint holds of a run, and what of that each rank has: of its parts of parameters and moments under their names
// ("NAME", "NAME.moment1", "NAME.moment2"), delayed scales with their histories, and "optimizer.updates".
#pragma once

#include <vector>

#include "octet/checkpoint/writer.h"
#include "octet/optim/optimizer.h"
#include "octet/parallel/groups.h"
#include "octet/recipes/scaler.h"

namespace octet::train {

// For checkpoint::Reader::load: all that this rank has, and of what it has nothing the name, as a reader wants to hear of all.
// Without an optimizer the weights and scales alone.
std::vector<checkpoint::Entry> read_entries(const parallel::ParameterStore& store, const recipes::ScaleState& scales,
                                            const optim::Optimizer* optimizer);

// For checkpoint::Writer::save: what this rank writes, so that all ranks together write each element once. Replicas hold the
// same, of which the first writes; what is not cut comes from the first of the ranks that hold it.
std::vector<checkpoint::Entry> written_entries(const parallel::ParameterStore& store, const recipes::ScaleState& scales,
                                               const optim::Optimizer& optimizer, const parallel::Groups& groups);

}  // namespace octet::train
