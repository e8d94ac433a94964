// The held-out loss, in BF16, of the weights from which an FP8 run starts. Its difference from the run's own loss before step 1 is the
// cost of quantisation.
#pragma once

#include "octet/train/config.h"
#include "octet/train/engine.h"

namespace octet::train {

// Returns options for the same model on the same mesh, in BF16 and only for evaluation. Weights are gathered for each use and
// resharded afterwards, because this engine should fit where the run fits and its speed does not matter.
EngineOptions evaluation_in_bf16(const EngineOptions& run);

// Returns the bytes that the rank with the largest need takes for this evaluation, or 0 if no rank takes more than in the run.
// A run that trains only adapters keeps no gradients and states of its weights, so its weights in BF16 may take more than the
// whole run.
std::size_t memory_beyond_run(const EngineOptions& run, DeviceKind device);

// Returns the mean loss, in nats per token, over the first evaluation.sequences held-out sequences, or NaN if there is no
// held-out text. Makes an engine on `device` and frees it afterwards; call it before the run's own engine takes its memory.
// Collective: all ranks call it.
double initial_loss_in_bf16(const EngineOptions& run, Device& device, const parallel::Groups& groups,
                            const data::Dataset& dataset, const Config& config);

}  // namespace octet::train
