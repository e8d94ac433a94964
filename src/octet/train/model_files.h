// Between an engine and a Hugging Face model directory.
#pragma once

#include <filesystem>

#include "octet/train/engine.h"

namespace octet::train {

// Fills the parameters from DIR's weights and makes values and codes. Throws Error{data} for what is missing, extra or misshapen,
// all at once.
void load_model(Engine& engine, const std::filesystem::path& directory);

// Writes config.json and the weights in BF16 (F32 for the fp32 recipe). All ranks call together; the first one writes.
void save_model(Engine& engine, const std::filesystem::path& directory);

}  // namespace octet::train
