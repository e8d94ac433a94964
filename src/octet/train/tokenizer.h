// Finds, checks and copies the tokenizer and the generation_config.json that belong to a model.
#pragma once

#include <filesystem>
#include <string>

#include "octet/data/dataset.h"
#include "octet/models/decoder/config.h"
#include "octet/train/config.h"

namespace octet::train {

// A tokenizer is given as the `spec` of data::make_tokenizer(); "" means that it is unknown.

// The folder next to a run's checkpoints that holds their tokenizer and their generation_config.json.
constexpr const char* kKeptTokenizer = "tokenizer";

// Returns the tokenizer of a run: the first that exists of the tokenizer named in the model's config.json, that of the model
// directory with which the run began, that kept with the checkpoint from which the run continues, and that with which the first
// corpus was prepared.
std::string tokenizer_of_run(const Config& config, const models::DecoderConfig& model);
// Compares the run's tokenizer with the tokenizer that the corpora were prepared with. Throws Error{data} if they certainly differ: only
// one of them is `byte`, or more than half of the common ids stand for different texts. If the corpora's tokenizer can no longer be read,
// throws if the vocabularies differ by more than 10% in size. Warns if the tokenizers may differ. Does nothing if either is unknown.
void check_tokenizer(const data::Dataset& dataset, const std::string& tokenizer);
// Warns if the corpora have fewer token ids than half of a model's vocabulary, as bytes do: most embeddings are then never
// trained. Does nothing if the number of a corpus is unknown.
void warn_of_untrained_ids(const data::Dataset& dataset, std::int64_t vocab);
// Copies the files of the run's tokenizer, and the generation_config.json of its model directory, to checkpoints/tokenizer/ in
// run.output_dir: the originals may be deleted or changed before a checkpoint is read. Call it when the run folder holds no
// checkpoints of other runs any more.
void keep_tokenizer(const Config& config, const models::DecoderConfig& model);
// Copies what keep_tokenizer() has kept to the model directory that the run writes. Warns if a tokenizer's files are missing.
void export_tokenizer(const Config& config, const models::DecoderConfig& model, const std::filesystem::path& directory);

// Returns the tokenizer of a Hugging Face directory or a checkpoint. For a checkpoint, this is the one that its run has kept
// with it. A checkpoint of an earlier version has kept none; then it is looked for where its run had found it.
std::string tokenizer_of_model(const std::filesystem::path& path, const models::DecoderConfig& model);
// Returns the path of the generation_config.json, in the same way. The path is empty if there is none, and the file need not
// exist.
std::filesystem::path generation_config_of_model(const std::filesystem::path& path);

// Copies the files of a tokenizer, if it has any, to a model directory. Warns if they have been deleted. `name` is the
// directory's name in the warning.
void copy_tokenizer(const std::string& tokenizer, const std::filesystem::path& directory, const std::filesystem::path& name);
// Copies the file if it exists.
void copy_generation_config(const std::filesystem::path& file, const std::filesystem::path& directory);

// If the model's configuration does not name the tokens that begin and end a text, adds those of the tokenizer. Changes nothing if the
// tokenizer has no file or its vocabulary is larger than the model's.
models::DecoderConfig with_token_ids(models::DecoderConfig model, const std::string& tokenizer);

}  // namespace octet::train
