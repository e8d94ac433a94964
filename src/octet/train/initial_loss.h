// The held-out loss of a model directory's weights in BF16, before a run goes on from them in FP8: what quantisation costs is the
// difference to the run's own loss before step 1.
#pragma once

#include "octet/train/engine.h"

namespace octet::train {

// The same model on the same mesh, in BF16 and for evaluation alone. Each layer's weights are gathered when they are used: it
// must fit where the run does, and is needed once.
EngineOptions evaluation_in_bf16(const EngineOptions& run);

// Mean over the first `sequences` held-out sequences, nats; NaN without held-out text. An engine of its own takes its memory on
// `device` and gives it back, so none of the run may be there. All ranks call together.
double initial_loss_in_bf16(const EngineOptions& run, Device& device, const parallel::Groups& groups,
                            const data::Dataset& dataset, const std::filesystem::path& directory, std::int64_t sequences);

}  // namespace octet::train
