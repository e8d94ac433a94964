// Loads the weights of a checkpoint for evaluation and generation.
#pragma once

#include <filesystem>
#include <memory>

#include "octet/checkpoint/reader.h"
#include "octet/data/dataset.h"
#include "octet/train/config.h"
#include "octet/train/engine.h"

namespace octet::train {

// Throws Error{config} if the checkpoint's run held out other text than `config` would, because the run trained on text that
// would now be held out. Checkpoints made before data.split_by existed held out windows.
void check_split(const checkpoint::Reader& reader, const Config& config);

// Throws Error{data} if there is no folder under this path, or if it is a folder that only holds the folders of runs, as `octet
// compare` leaves it. `wanted` names what to give instead: "the folder of a run".
void demand_one(const std::filesystem::path& path, const char* wanted);

// Returns the checkpoint or model directory that `path` stands for. For a run's folder this is its newest checkpoint or, if it
// has none, its model or adapter. Any other path stands for itself. Throws like demand_one(), and Error{data} for the folder of
// a run that has neither.
std::filesystem::path model_at(const std::filesystem::path& path);
// Does the same for a command that reads no checkpoints: for a run's folder, returns its model or adapter.
std::filesystem::path exported_model_at(const std::filesystem::path& path);

// Returns the value of checkpoint.resume; the folder of a run is replaced by its newest checkpoint. Retries for retry_s after
// an error that may pass. Throws Error{data} unless it is auto, none, the folder of a checkpoint or the folder of a run that
// has one.
std::string checkpoint_to_resume(const CheckpointConfig& config);

// Returns the checkpoint that `path`, the value of `option`, stands for: itself, or the newest checkpoint in a run's folder.
// Throws Error{data} for anything else.
std::filesystem::path checkpoint_at(const std::filesystem::path& path, const char* option);

// Adds the linears that anomaly.remedy = "demote" had put into BF16 before the checkpoint to precision.skip. An engine that
// reads the checkpoint must also have them in BF16.
void skip_demoted(Config& config, const checkpoint::Reader& reader);

// Overwrites the weights and scales of an engine of `config` that does not train with those of a checkpoint, and returns the
// checkpoint's step. With [lora], the model beneath the adapters is loaded as for a run. Throws Error{data} if the checkpoint
// belongs to another model, and Error{config} if it was made with another recipe.
std::int64_t restore_weights(Engine& engine, const Config& config, const checkpoint::Reader& checkpoint);

// Returns the configuration of the model that open_model() opens.
models::DecoderConfig config_of_model(const std::filesystem::path& path);

// Makes an engine for Engine::logits() of one sequence of at most `max_tokens` tokens, or the model's maximum if it is smaller,
// and loads its weights. `path` is a Hugging Face directory or an adapter directory of PEFT, which run in BF16, or a checkpoint,
// which runs in its own recipe.
std::unique_ptr<Engine> open_model(const std::filesystem::path& path, DeviceKind device, std::int64_t max_tokens);

// Returns the mean loss, in nats per token, over the first `sequences` held-out sequences, or over all if there are fewer. Returns NaN if
// there are none. The sequences are divided among the data coordinates of the mesh. Collective: all ranks call it.
double evaluate(Engine& engine, const data::Dataset& dataset, std::int64_t sequences);

}  // namespace octet::train
