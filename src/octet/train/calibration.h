// The text that sets the first scales of delayed scaling (docs/numerics.md, "Calibration").
#pragma once

#include <cstdint>

#include "octet/data/dataset.h"
#include "octet/train/config.h"
#include "octet/train/engine.h"

namespace octet::train {

// Returns the position of the first batch of `batch` samples, from `position` on, with a token that is trained on. A batch without
// one has no gradients to set scales from, and its step changes nothing. Returns `position` if an epoch has no such batch.
std::int64_t first_trained_batch(const data::Dataset& dataset, std::int64_t position, std::int64_t batch);

// Sets the scales of an engine of one rank that does not train, as a run of `config` sets them before its first step: by the
// sequences of that step. Without text to train on, the first held-out sequences of `held_out` set them.
void calibrate(Engine& engine, const Config& config, const data::Dataset& dataset, const data::Dataset& held_out);

}  // namespace octet::train
