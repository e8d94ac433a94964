// From a configuration to what an engine needs.
#pragma once

#include <string>
#include <vector>

#include "octet/train/config.h"
#include "octet/train/engine.h"

namespace octet::train {

DeviceKind device_of(const Config& config);
// The recipe of [precision], refused in a sentence where the device cannot run it.
Recipe recipe_of(const Config& config, DeviceKind device);
// How [parallel] lays the model out on the mesh; where it leaves the choice, the first of layouts_allowed.
parallel::Layout layout_of(const Config& config, const parallel::Mesh& mesh);
// The run with each layout that its [parallel] allows, in the order of parallel::kept_order; with one where the mesh cuts no
// parameters, as they differ in nothing.
std::vector<Config> layouts_allowed(const Config& config, const parallel::Mesh& mesh);
// The engine's dtypes, recipe, checkpointing and optimizer, without a model.
EngineOptions optimizer_options(const Config& config, const Recipe& recipe);
// The same with the model and the sizes of [training]. Throws Error{config} for a sequence longer than the model's.
EngineOptions engine_options(const Config& config, const Recipe& recipe);
// Where the choices of GEMM algorithms are kept, and the progress of making them on stderr: octet/gemm.json in the user's cache
// folder (XDG_CACHE_HOME, or ~/.cache); without either nothing is kept.
kernels::GemmTuning gemm_tuning();
data::DatasetOptions dataset_options(const Config& config, std::int64_t vocab);
// Micro-batches of an optimizer step, where so many data-parallel coordinates share it.
std::int64_t accumulation_of(const Config& config, std::int64_t coordinates = 1);

// What every linear computes in, a line per kind of layer, so that nobody has to trust: name, shape, formats and tiles of X, W
// and G.
std::string precision_table(models::Decoder& model);

}  // namespace octet::train
