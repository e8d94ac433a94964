// Loads and saves the model of an engine as a Hugging Face model directory.
#pragma once

#include <filesystem>

#include "octet/train/engine.h"

namespace octet::train {

// Overwrites the parameters, but those of adapters, with the weights in `directory` and refreshes the values and codes that are
// computed from them. Throws one Error{data} that lists all missing, unexpected and misshapen tensors.
void load_model(Engine& engine, const std::filesystem::path& directory);

// Writes config.json and the weights, in BF16 or, with the recipe fp32, in F32. Collective: all ranks call it, and rank 0 writes.
void save_model(Engine& engine, const std::filesystem::path& directory);

}  // namespace octet::train
