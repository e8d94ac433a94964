// The tokenizer that belongs to a model, and what else of its directory is no weight.
#pragma once

#include <filesystem>
#include <string>

#include "octet/data/dataset.h"
#include "octet/models/decoder/config.h"
#include "octet/train/config.h"

namespace octet::train {

// What data::make_tokenizer() takes, or "" when nobody knows. Of a run: what its config.json names, the model directory it began
// with or what the run has kept of that, or what its first corpus was made with.
std::string tokenizer_of_run(const Config& config, const models::DecoderConfig& model);
// Throws Error{data} where the corpora were certainly made with another tokenizer than this one, which tokenizer_of_run gives:
// bytes for a model with a tokenizer's file or the other way round, ids that mostly stand for other texts, vocabularies whose
// sizes no added tokens explain. Warns where they may have been. Of tokenizers that nobody knows nothing is said.
void check_tokenizer(const data::Dataset& dataset, const std::string& tokenizer);
// Keeps the tokenizer's files and generation_config.json of the model directory in checkpoints/tokenizer/ of run.output_dir: the
// directory may go before the run ends. Where it has gone, what there is stays.
void keep_tokenizer(const Config& config, const models::DecoderConfig& model);
// Of a Hugging Face directory or a checkpoint.
std::string tokenizer_of_model(const std::filesystem::path& path, const models::DecoderConfig& model);

// Puts the files of such a tokenizer, if it has any, into a model directory. Warns where they have gone.
void copy_tokenizer(const std::string& tokenizer, const std::filesystem::path& directory);

// generation_config.json of the model directory that a run began with, or what the run has kept of it; or an empty path. The same
// of a Hugging Face directory or a checkpoint. It is copied if it is there.
std::filesystem::path generation_config_of_run(const Config& config);
std::filesystem::path generation_config_of_model(const std::filesystem::path& path);
void copy_generation_config(const std::filesystem::path& file, const std::filesystem::path& directory);

// A model that does not know which tokens begin and end a text, with those that such a tokenizer puts there: none if it is none or
// its vocabulary is larger than the model's.
models::DecoderConfig with_token_ids(models::DecoderConfig model, const std::string& tokenizer);

}  // namespace octet::train
