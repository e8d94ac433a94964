// Lists the tensors of a checkpoint and the slices of them that this rank holds: trained parameters and moments ("NAME",
// "NAME.moment1", "NAME.moment2", in FP8 also "NAME.moment1_scale" and "NAME.moment2_scale"), delayed scales with their histories
// ("fp8.*"), and "optimizer.updates".
#pragma once

#include <cstdint>
#include <vector>

#include "octet/checkpoint/writer.h"
#include "octet/optim/optimizer.h"
#include "octet/parallel/groups.h"
#include "octet/recipes/scaler.h"

namespace octet::train {

// Returns the entries for checkpoint::Reader::load(): all slices that this rank holds, and an empty slice of each tensor of
// which it holds nothing. Without an optimizer (nullptr), only weights and scales.
std::vector<checkpoint::Entry> read_entries(const parallel::ParameterStore& store, const recipes::ScaleState& scales,
                                            const optim::Optimizer* optimizer);

// Returns the bytes of a checkpoint that holds the tensors of these entries as a whole, whichever slices this rank holds.
std::uint64_t bytes_of_checkpoint(const std::vector<checkpoint::Entry>& entries);

// Returns the entries for checkpoint::Writer::save(). Parameters and moments are steady: they change only between
// Engine::apply()'s call of `before_update` and its end, never in a forward or backward pass. Scales and counters are not
// steady. Together the ranks write each element exactly once. Only the first replica writes. The first rank that holds a tensor
// which is not sharded writes it.
std::vector<checkpoint::Entry> written_entries(const parallel::ParameterStore& store, const recipes::ScaleState& scales,
                                               const optim::Optimizer& optimizer, const parallel::Groups& groups);

}  // namespace octet::train
