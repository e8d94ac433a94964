// Finds, checks and copies the tokenizer and the generation_config.json that belong to a model.
#pragma once

#include <filesystem>
#include <string>

#include "octet/data/dataset.h"
#include "octet/models/decoder/config.h"
#include "octet/train/config.h"

namespace octet::train {

// A tokenizer is given as the `spec` of data::make_tokenizer(); "" means that it is unknown.

// Returns the tokenizer of a run. It is, in this order: the tokenizer named in the model's config.json; the model directory that the run
// began with, or the copy of its tokenizer that the run keeps; the tokenizer that the first corpus was prepared with.
std::string tokenizer_of_run(const Config& config, const models::DecoderConfig& model);
// Compares the run's tokenizer with the tokenizer that the corpora were prepared with. Throws Error{data} if they certainly differ: only
// one of them is `byte`, or more than half of the common ids stand for different texts. If the corpora's tokenizer can no longer be read,
// throws if the vocabularies differ by more than 10% in size. Warns if the tokenizers may differ. Does nothing if either is unknown.
void check_tokenizer(const data::Dataset& dataset, const std::string& tokenizer);
// Warns if the corpora have fewer token ids than half of a model's vocabulary, as bytes do: most embeddings are then never
// trained. Does nothing if the number of a corpus is unknown.
void warn_of_untrained_ids(const data::Dataset& dataset, std::int64_t vocab);
// Copies the tokenizer's files and generation_config.json of model.init_from to checkpoints/tokenizer/ in run.output_dir, because the
// model directory may be deleted before the run ends. If it has been deleted, an earlier copy stays.
void keep_tokenizer(const Config& config, const models::DecoderConfig& model);
// Returns the tokenizer of a Hugging Face directory or a checkpoint.
std::string tokenizer_of_model(const std::filesystem::path& path, const models::DecoderConfig& model);

// Copies the files of a tokenizer, if it has any, to a model directory. Warns if they have been deleted.
void copy_tokenizer(const std::string& tokenizer, const std::filesystem::path& directory);

// Return the generation_config.json of the model directory that a run began with, or the copy that the run keeps; or of a Hugging Face
// directory or a checkpoint. The path is empty if there is no such directory, and the file need not exist.
std::filesystem::path generation_config_of_run(const Config& config);
std::filesystem::path generation_config_of_model(const std::filesystem::path& path);
// Copies the file if it exists.
void copy_generation_config(const std::filesystem::path& file, const std::filesystem::path& directory);

// If the model's configuration does not name the tokens that begin and end a text, adds those of the tokenizer. Changes nothing if the
// tokenizer has no file or its vocabulary is larger than the model's.
models::DecoderConfig with_token_ids(models::DecoderConfig model, const std::string& tokenizer);

}  // namespace octet::train
