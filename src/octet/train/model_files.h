// Loads and saves the model of an engine as a Hugging Face model directory.
#pragma once

#include <filesystem>

#include "octet/checkpoint/model_weights.h"
#include "octet/train/engine.h"

namespace octet::train {

// Throws one Error{data} that lists all missing, unexpected and misshapen tensors of a model directory. Also throws Error{data}
// if config.json says that the head is the embedding, but the directory holds a head with other values: transformers uses this
// head.
void check_model(const checkpoint::ModelWeights& weights, const parallel::NameTable& names, const models::DecoderConfig& config);

// Overwrites the parameters, except those of adapters, with the weights in `directory`, and refreshes the values and codes that
// depend on them. Biases of routers that the directory lacks stay zero. Throws like check_model().
void load_model(Engine& engine, const std::filesystem::path& directory);

// A model that is given as a folder: a Hugging Face directory, or an adapter directory of PEFT with the Hugging Face directory
// that it names as its base.
struct ModelDirectory {
  std::filesystem::path model;
  std::filesystem::path adapter;  // empty: none
  models::DecoderConfig config;   // config.json of the base, or what an adapter's run made of it
  models::Adapters adapters;
};
// Throws Error{data} if config.json is missing or wrong, and for an adapter whose base is not a directory here.
ModelDirectory find_model(const std::filesystem::path& path);
// Overwrites the parameters of an engine that was made for this model.
void load_model(Engine& engine, const ModelDirectory& from);

// Warns in one line that other programs do not know the biases of a model's routers. Does nothing if there are none.
void warn_of_router_bias(const models::DecoderConfig& config, const std::filesystem::path& directory);

// Returns the name of the first trained weight with elements that would be NaN or infinite in the model or the adapter that the
// run exports, or "". All ranks call it together and get the same answer. Waits.
std::string not_finite_weight(Engine& engine);

// Writes config.json and the weights, in BF16 or, with the recipe fp32, in F32. Collective: all ranks call it, and rank 0 writes.
void save_model(Engine& engine, const std::filesystem::path& directory);

}  // namespace octet::train
