// Converts a configuration to the options of an engine, a dataset and the kernels.
#pragma once

#include <string>
#include <vector>

#include "octet/train/config.h"
#include "octet/train/engine.h"

namespace octet::train {

DeviceKind device_of(const Config& config);
// Returns the recipe of [precision]. Throws Error{config} if the device cannot run it. The GPU is the first one of this
// machine, a Hopper if there is none, or one of compute capability `capability` (90 for 9.0).
Recipe recipe_of(const Config& config, DeviceKind device);
Recipe recipe_of(const Config& config, DeviceKind device, int capability);
// Returns "fp8_block", or "fp8_block, emulated" if the device has no instructions for the recipe. A CPU has none for FP8.
std::string recipe_text(const Recipe& recipe, DeviceKind device);
// Warns if precision.preset = "fast" changes nothing, because the recipe's products accumulate in one way only.
void warn_of_idle_preset(const Config& config);
// Returns the adapters of [lora]; none without this table.
models::Adapters adapters_of(const Config& config);
// Returns the layout that [parallel] gives the model on the mesh. If [parallel] leaves a choice ("auto"), takes the first of
// layouts_allowed().
parallel::Layout layout_of(const Config& config, const parallel::Mesh& mesh);
// Returns copies of `config`, one for each choice of weights and gradients that its [parallel] allows, in the order of
// parallel::kept_order(). Returns only one if the mesh does not shard parameters, because the choices are then the same.
std::vector<Config> layouts_allowed(const Config& config, const parallel::Mesh& mesh);
// The options of an engine without a model: dtypes, recipe, activation checkpointing and optimizer.
EngineOptions optimizer_options(const Config& config, const Recipe& recipe);
// Returns options with the model and the sizes of [training]. Throws Error{config} if seq_len exceeds the model's maximum.
EngineOptions engine_options(const Config& config, const Recipe& recipe);
// The same with another model and other adapters than those of [model] and [lora].
EngineOptions engine_options(const Config& config, const Recipe& recipe, const models::DecoderConfig& model,
                             const models::Adapters& adapters);
// Returns the file in which chosen GEMM algorithms are stored, and a function that logs the progress of choosing. The file is
// octet/gemm.json in XDG_CACHE_HOME, or in ~/.cache if that is not set. Without either folder, choices are not stored.
kernels::GemmTuning gemm_tuning();
data::DatasetOptions dataset_options(const Config& config, std::int64_t vocab);
// Returns the number of micro-batches of each rank in an optimizer step that `coordinates` data-parallel coordinates share.
std::int64_t accumulation_of(const Config& config, std::int64_t coordinates = 1);

// Returns a table of the precision in which the linears really compute: a line for each kind of layer with name, shape, number
// of layers, and the formats and tiles of X, W and G. Users can check their configuration with it.
std::string precision_table(models::Decoder& model);

}  // namespace octet::train
