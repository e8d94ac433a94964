// Texts about the steps that a run skipped.
#pragma once

#include <cstdint>
#include <string>

namespace octet::telemetry {

// Whether a run skipped more than half of its steps. Its weights are then not those of a trained model.
bool skipped_most(std::int64_t skipped, std::int64_t steps);
// "3 of 1,000 steps had a loss or gradient that is not finite and were skipped". If every step was skipped, the text begins with
// "all 6 steps" or "the only step".
std::string text_of_skipped(std::int64_t skipped, std::int64_t steps);
// "3 of 1,000 steps had no token to train on and were skipped".
std::string text_of_empty(std::int64_t empty, std::int64_t steps);

}  // namespace octet::telemetry
