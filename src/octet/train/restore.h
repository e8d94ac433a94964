// The weights of a checkpoint, for evaluation, generation and export.
#pragma once

#include <filesystem>
#include <memory>

#include "octet/data/dataset.h"
#include "octet/train/engine.h"

namespace octet::train {

// Fills an engine that does not train with the weights and scales of a checkpoint; returns its step. Throws Error{data} where the
// checkpoint is of another model, Error{config} where it is of another recipe.
std::int64_t restore_weights(Engine& engine, const std::filesystem::path& checkpoint);

// An engine for `logits` of one sequence of at most `max_tokens` (or the model's longest), with its weights: a Hugging Face directory in BF16,
// or a checkpoint in its own recipe.
std::unique_ptr<Engine> open_model(const std::filesystem::path& path, DeviceKind device, std::int64_t max_tokens);

// Mean loss over so many held-out sequences, or all there are, which are dealt out to the data coordinates of the mesh; NaN where
// none is held out. All ranks call together.
double evaluate(Engine& engine, const data::Dataset& dataset, std::int64_t sequences);

}  // namespace octet::train
