// The weights with which a run begins. A run with [lora] does not store its model in checkpoints. It loads the model again
// whenever it starts, and checkpoints hold a hash of it.
#pragma once

#include <string>

#include "octet/base/json.h"
#include "octet/train/config.h"
#include "octet/train/engine.h"

namespace octet::train {

// Throws Error{data} unless a run can begin with model.init_from. If the directory has no model.safetensors and no index, the
// weights start at random. Then it must hold no weights in another form, and there must be no [lora].
void check_init_from(const Config& config);

// Overwrites all parameters with the weights of model.init_from, or with random ones if there are none, and initialises
// adapters. Throws like check_init_from().
void begin_base(Engine& engine, const Config& config);
// Does the same, and then overwrites the adapters with those of lora.init_from, if it is given.
void begin_model(Engine& engine, const Config& config);

// Returns the hash of the model beneath the adapters of [lora], as 16 hexadecimal digits. It covers the name, dtype, shape, and
// first and last values of every tensor of model.init_from. For random weights it covers the seed and every name and shape,
// which determine them.
std::string hash_of_base(const Config& config);
// Throws Error{data} that names `checkpoint` if its `meta` says that its adapters belong to a model with another hash.
void check_base(const nlohmann::json& meta, const std::string& hash, const std::string& checkpoint);

}  // namespace octet::train
