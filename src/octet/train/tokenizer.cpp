#include "octet/train/tokenizer.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "octet/base/directory.h"
#include "octet/base/log.h"
#include "octet/base/require.h"
#include "octet/base/system_call.h"
#include "octet/checkpoint/reader.h"
#include "octet/data/corpus.h"
#include "octet/data/tokenizer/files.h"
#include "octet/data/tokenizer/tokenizer.h"
#include "octet/telemetry/format.h"
#include "octet/train/model_files.h"

namespace octet::train {
namespace fs = std::filesystem;
namespace {

constexpr const char* kBytes = "byte";  // the tokenizer that has no files

// The tokenizer that a corpus was prepared with, or "" if it is unknown or its file has changed since.
std::string tokenizer_of_corpus(const fs::path& prefix) {
  const fs::path json = data::CorpusPaths(prefix).json;
  if (!path_exists(json)) return "";
  const data::CorpusInfo info = data::parse_corpus_info(read_file(json), json.string());
  const auto file = data::tokenizer_file(info.tokenizer);
  if (file && data::tokenizer_hash(*file) != info.tokenizer_hash) {
    log_warning(concat(file->string(), ": has changed since ", json.string(), " was made with this tokenizer"));
    return "";
  }
  return info.tokenizer;
}

// Two tokenizers are different if more than 1 / kTwoTokenizers of their common ids stand for different texts. Up to 1 / kSpecialTokens of
// the ids may be special tokens with other names.
constexpr std::int64_t kTwoTokenizers = 2, kSpecialTokens = 100;
// A model may have added tokens: up to 1 / kAddedTokens of the smaller vocabulary.
constexpr std::int64_t kAddedTokens = 10;

// The tokenizer of a file, or nullptr if it cannot be read.
std::unique_ptr<data::Tokenizer> tokenizer_of_file(const fs::path& file) {
  try {
    return data::make_tokenizer(file.string());
  } catch (const Error&) {
    return nullptr;
  }
}

std::int64_t common_ids(const data::Tokenizer& a, const data::Tokenizer& b) { return std::min(a.vocab_size(), b.vocab_size()); }

// The number of common ids that stand for different texts. It is almost 0 for two forms of the same tokenizer, or if one has more tokens.
std::int64_t ids_that_differ(const data::Tokenizer& a, const data::Tokenizer& b) {
  std::int64_t count = 0;
  for (std::int32_t id = 0; id < common_ids(a, b); ++id) {
    std::string of_a = "x", of_b = "x";  // not empty, because decode() drops a space at the beginning of a text
    a.decode({&id, 1}, of_a);
    b.decode({&id, 1}, of_b);
    count += of_a != of_b;
  }
  return count;
}

// The first corpus whose tokenizer is known, or nullptr. Dataset has checked that all known tokenizers agree.
const data::Corpus* corpus_of_known_tokenizer(const data::Dataset& dataset) {
  for (std::int64_t s = 0; s < dataset.sources(); ++s) {
    const auto& info = dataset.corpus(s).info();
    if (info && !info->tokenizer.empty()) return &dataset.corpus(s);
  }
  return nullptr;
}

constexpr const char* kGenerationConfig = "generation_config.json";

fs::path kept_tokenizer(const Config& config) { return fs::path(config.run.output_dir) / "checkpoints" / "tokenizer"; }

}  // namespace

std::string tokenizer_of_run(const Config& config, const models::DecoderConfig& model) {
  if (!model.tokenizer.empty()) return model.tokenizer;
  if (!config.model.init_from.empty()) {
    for (const std::string& directory : {config.model.init_from, kept_tokenizer(config).string()})
      if (data::tokenizer_file(directory)) return directory;
  }
  const std::string known = config.data.source.empty() ? "" : tokenizer_of_corpus(config.data.source.front().path);
  return known.empty() && init_from_is_gone(config) ? config.model.init_from : known;  // the deleted directory, for a message
}

void check_tokenizer(const data::Dataset& dataset, const std::string& tokenizer) {
  const auto file = data::tokenizer_file(tokenizer);
  const data::Corpus* corpus = corpus_of_known_tokenizer(dataset);
  if (corpus == nullptr || (!file && tokenizer != kBytes)) return;
  const data::CorpusInfo& info = *corpus->info();
  const std::string text = concat(corpus->paths().json.string(), ": prepared with tokenizer ", info.tokenizer,
                                  ", but the model's is ", file ? file->string() : tokenizer);
  const std::string advice = concat("; prepare a corpus for it with `octet data prepare --tokenizer ", tokenizer, "`");
  if (!file) {
    demand(info.tokenizer == kBytes, ExitCode::data, text, advice, ", or remove model.tokenizer to use that of the corpus");
    return;
  }
  demand(info.tokenizer != kBytes, ExitCode::data, text, advice, ", or train on bytes with model.tokenizer = \"byte\"");
  if (data::tokenizer_hash(*file) == info.tokenizer_hash) return;

  const auto made_with = data::tokenizer_file(info.tokenizer);
  const auto models = tokenizer_of_file(*file), corpora = made_with ? tokenizer_of_file(*made_with) : nullptr;
  if (models && corpora && corpora->hash() == info.tokenizer_hash) {
    const std::int64_t common = common_ids(*models, *corpora), differ = ids_that_differ(*models, *corpora);
    const std::string count = concat("; ", differ, " of ", common, " ids stand for different texts");
    demand(differ * kTwoTokenizers <= common, ExitCode::data, text, count, advice);
    if (differ * kSpecialTokens > common) log_warning(concat(text, count));
    return;
  }
  if (models) {
    const std::int64_t size = models->vocab_size(), least = std::min(size, info.vocab_size);
    demand(std::abs(size - info.vocab_size) * kAddedTokens <= least, ExitCode::data, text, ", with ", size, " tokens instead of ",
           info.vocab_size, advice);
  }
  log_warning(concat(text, "; the files differ, and Octet cannot tell whether they define the same tokenizer"));
}

void warn_of_untrained_ids(const data::Dataset& dataset, std::int64_t vocab) {
  const data::Corpus* largest = nullptr;
  for (std::int64_t s = 0; s < dataset.sources(); ++s) {
    const data::Corpus& corpus = dataset.corpus(s);
    if (!corpus.info()) return;
    if (largest == nullptr || corpus.info()->vocab_size > largest->info()->vocab_size) largest = &corpus;
  }
  if (largest == nullptr) return;
  const data::CorpusInfo& info = *largest->info();
  const std::int64_t untrained = vocab - info.vocab_size;
  if (untrained <= info.vocab_size) return;
  log_warning(concat(largest->paths().json.string(), ": the corpus has ", telemetry::format_count(info.vocab_size), " token ids",
                     info.tokenizer.empty() ? "" : concat(" (tokenizer ", info.tokenizer, ")"),
                     ", but model.vocab_size = ", telemetry::format_count(vocab),
                     ": no token trains the embeddings of the other ", telemetry::format_count(untrained),
                     ". Give --model.vocab_size=", info.vocab_size, ", or prepare the corpus with the model's tokenizer"));
}

void keep_tokenizer(const Config& config, const models::DecoderConfig& model) {
  if (init_from_is_gone(config)) return;
  const fs::path kept = kept_tokenizer(config), part = kept.string() + ".part";
  remove_tree(part);
  const auto file = data::tokenizer_file(config.model.init_from);
  if (!config.model.init_from.empty()) {
    make_folders(part);
    if (model.tokenizer.empty() && file) data::copy_tokenizer_files(*file, part);
    copy_generation_config(fs::path(config.model.init_from) / kGenerationConfig, part);
  }
  remove_tree(kept);  // may belong to another run
  if (!config.model.init_from.empty() && std::rename(part.c_str(), kept.c_str()) != 0) {
    fail_errno(ExitCode::internal, kept, "cannot rename");
  }
}

std::string tokenizer_of_model(const fs::path& path, const models::DecoderConfig& model) {
  if (!model.tokenizer.empty()) return model.tokenizer;
  if (!path_exists(path / "manifest.json")) return find_model(path).model.string();
  const auto reader = checkpoint::Reader::open(path);
  return tokenizer_of_run(parse_config(reader.meta().value("toml", ""), (path / "manifest.json").string()), model);
}

void copy_tokenizer(const std::string& tokenizer, const fs::path& directory) {
  if (const auto file = data::tokenizer_file(tokenizer)) return data::copy_tokenizer_files(*file, directory);
  if (tokenizer.find('/') != std::string::npos) {
    log_warning(concat(directory.string(), ": written without a tokenizer, because there are no tokenizer files in ", tokenizer));
  }
}

fs::path generation_config_of_run(const Config& config) {
  if (config.model.init_from.empty()) return {};
  const fs::path file = fs::path(config.model.init_from) / kGenerationConfig;
  return init_from_is_gone(config) ? kept_tokenizer(config) / kGenerationConfig : file;
}

fs::path generation_config_of_model(const fs::path& path) {
  if (!path_exists(path / "manifest.json")) return find_model(path).model / kGenerationConfig;
  const auto reader = checkpoint::Reader::open(path);
  return generation_config_of_run(parse_config(reader.meta().value("toml", ""), (path / "manifest.json").string()));
}

void copy_generation_config(const fs::path& file, const fs::path& directory) {
  if (is_file(file)) write_file_atomically(directory / kGenerationConfig, read_file(file));
}

models::DecoderConfig with_token_ids(models::DecoderConfig model, const std::string& tokenizer) {
  if (!model.eos.empty() || !data::tokenizer_file(tokenizer)) return model;
  try {
    const auto known = data::make_tokenizer(tokenizer);
    if (known->vocab_size() > model.vocab) return model;
    if (!model.bos && known->prefix().size() == 1) model.bos = known->prefix().front();
    if (known->end_of_document()) model.eos = {*known->end_of_document()};
  } catch (const Error& error) {
    log_warning(concat(error.what(), "; model directories will not say which tokens begin and end a text"));
  }
  return model;
}

}  // namespace octet::train
