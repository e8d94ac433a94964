// Parameters without an engine.
#pragma once

#include <cstdint>

#include "octet/parallel/parameter.h"

namespace octet::testing {

// Fills all primaries with random numbers.
inline void initialise(parallel::ParameterStore& store, Stream& stream, std::uint64_t seed) {
  for (const parallel::Parameter& p : store.parameters()) store.initialise(stream, p, seed);
}

// Makes values and codes from the primaries. The scale slots of the weights are known.
inline void refresh(parallel::ParameterStore& store, Stream& stream, Arena& scratch) {
  store.refresh_values(stream);
  store.prepare_codes(stream.device(), store.all_units());
  store.refresh_codes(stream, scratch, store.all_units());
}

// An optimizer step that works on all units together.
inline parallel::UpdateWork update_of_all(const parallel::ParameterStore& store) {
  return {.units = {store.all_units()}, .pieces = {store.states(store.all_units())}};
}

}  // namespace octet::testing
