// Adapter directories of PEFT, Hugging Face's library for adapters: adapter_config.json and adapter_model.safetensors.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "octet/checkpoint/model_dir.h"
#include "octet/checkpoint/model_weights.h"
#include "octet/models/registry.h"
#include "octet/train/engine.h"

namespace octet::train {

// Whether the directory has an adapter_config.json.
bool is_adapter(const std::filesystem::path& directory);
// Whether the directory also has the adapter's weights.
bool is_whole_adapter(const std::filesystem::path& directory);

// Throws Error{data} if `path`, where the directory of a model or adapter is wanted, is the folder of a run, and names the
// directory in it to give instead.
void demand_no_run_folder(const std::filesystem::path& path);

// For a command that needs a whole model: throws like demand_no_run_folder(), and also if `path` is an adapter or the folder of
// a run that has one.
void demand_whole_model(const std::filesystem::path& path);

struct AdapterDirectory {
  checkpoint::ModelWeights weights;
  std::string base;           // base_model_name_or_path: a model directory, or a name on a hub
  models::Adapters adapters;  // the targets are the whole names of the modules that have tensors
};
// Reads the model_config.json of an adapter directory, if there is one. Throws Error{data}.
std::optional<models::DecoderConfig> changed_config_of(const std::filesystem::path& directory);
// Throws Error{data} that names each item which is missing, malformed or not supported.
AdapterDirectory open_adapter(const std::filesystem::path& directory);

// Overwrites the adapters of an engine and refreshes them. Returns the name of the adapters' base. Throws one Error{data} that
// lists all missing, unexpected and misshapen tensors, and Error{config} if the engine's adapters have another rank or scale.
std::string load_adapter(Engine& engine, const std::filesystem::path& directory);

// The model with which adapters were trained.
struct AdapterBase {
  std::string name;                 // becomes base_model_name_or_path
  std::filesystem::path directory;  // its Hugging Face directory on this machine; empty for random weights
};
// Returns the members in which the model that adapters were trained with differs from its base's config.json, because [model]
// changed them.
std::vector<models::ConfigDifference> changes_of_base(const models::DecoderConfig& base, const models::DecoderConfig& trained);
// Writes the adapters of `model` in F32; `whole` returns their parameters. If the model's config.json differs from that of the
// base, also writes it as model_config.json and warns, because adapter_config.json cannot express the difference.
void write_adapter(const std::filesystem::path& directory, models::Decoder& model, const models::Adapters& adapters,
                   const AdapterBase& base, const checkpoint::WholeParameter& whole);
// Writes the adapters of an engine. Collective: all ranks call it, and rank 0 writes.
void save_adapter(Engine& engine, const AdapterBase& base, const std::filesystem::path& directory);

}  // namespace octet::train
