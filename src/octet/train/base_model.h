// The weights that a run begins with. A run with [lora] does not store its model in checkpoints, so it loads the model again
// whenever it starts, and checkpoints hold a hash of it.
#pragma once

#include <string>

#include "octet/base/json.h"
#include "octet/train/config.h"
#include "octet/train/engine.h"

namespace octet::train {

// Throws Error{data} unless a run can begin with model.init_from. Without model.safetensors or its index, the weights start at
// random. Then the directory must hold no weights in another form, and there must be no [lora].
void check_init_from(const Config& config);

// Overwrites all parameters with the weights of model.init_from, or random ones if there are none, and adapters with new ones.
// Throws as check_init_from() does.
void begin_base(Engine& engine, const Config& config);
// The same, and then overwrites the adapters with those of lora.init_from, if it is given.
void begin_model(Engine& engine, const Config& config);

// The hash of the model beneath the adapters of [lora], as 16 hexadecimal digits: of the name, dtype, shape, and first and last
// values of every tensor of model.init_from; or of the seed and of every name and shape, which random weights follow from.
std::string hash_of_base(const Config& config);
// Throws Error{data} naming `checkpoint` if its adapters, by its `meta`, belong to a model with another hash.
void check_base(const nlohmann::json& meta, const std::string& hash, const std::string& checkpoint);

}  // namespace octet::train
