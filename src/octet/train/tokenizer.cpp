#include "octet/train/tokenizer.h"

#include "octet/base/log.h"
#include "octet/base/require.h"
#include "octet/checkpoint/reader.h"
#include "octet/data/corpus.h"
#include "octet/data/tokenizer/files.h"
#include "octet/data/tokenizer/tokenizer.h"

namespace octet::train {
namespace fs = std::filesystem;
namespace {

// Of a prepared corpus, when it says so and the tokenizer is still the same.
std::string tokenizer_of_corpus(const fs::path& prefix) {
  const fs::path json = data::CorpusPaths(prefix).json;
  std::error_code error;
  if (!fs::exists(json, error)) return "";
  const data::CorpusInfo info = data::parse_corpus_info(read_file(json), json.string());
  const auto file = data::tokenizer_file(info.tokenizer);
  if (file && data::tokenizer_hash(*file) != info.tokenizer_hash) {
    log_warning(concat(file->string(), ": not the tokenizer any more that ", json.string(), " was made with"));
    return "";
  }
  return info.tokenizer;
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
  return known.empty() && init_from_is_gone(config) ? config.model.init_from : known;  // for a message
}

void keep_tokenizer(const Config& config, const models::DecoderConfig& model) {
  if (init_from_is_gone(config)) return;
  const fs::path kept = kept_tokenizer(config), part = kept.string() + ".part";
  fs::remove_all(part);
  const auto file = data::tokenizer_file(config.model.init_from);
  if (!config.model.init_from.empty()) {
    fs::create_directories(part);
    if (model.tokenizer.empty() && file) data::copy_tokenizer_files(*file, part);
    copy_generation_config(fs::path(config.model.init_from) / kGenerationConfig, part);
  }
  fs::remove_all(kept);  // perhaps of another run
  if (!config.model.init_from.empty()) fs::rename(part, kept);
}

std::string tokenizer_of_model(const fs::path& path, const models::DecoderConfig& model) {
  if (!model.tokenizer.empty()) return model.tokenizer;
  if (!fs::exists(path / "manifest.json")) return path.string();
  const auto reader = checkpoint::Reader::open(path);
  return tokenizer_of_run(parse_config(reader.meta().value("toml", ""), (path / "manifest.json").string()), model);
}

void copy_tokenizer(const std::string& tokenizer, const fs::path& directory) {
  if (const auto file = data::tokenizer_file(tokenizer)) return data::copy_tokenizer_files(*file, directory);
  if (tokenizer.find('/') != std::string::npos) {
    log_warning(concat(directory.string(), ": without the files of tokenizer ", tokenizer, ", which holds none now"));
  }
}

fs::path generation_config_of_run(const Config& config) {
  if (config.model.init_from.empty()) return {};
  const fs::path file = fs::path(config.model.init_from) / kGenerationConfig;
  return init_from_is_gone(config) ? kept_tokenizer(config) / kGenerationConfig : file;
}

fs::path generation_config_of_model(const fs::path& path) {
  if (!fs::exists(path / "manifest.json")) return path / kGenerationConfig;
  const auto reader = checkpoint::Reader::open(path);
  return generation_config_of_run(parse_config(reader.meta().value("toml", ""), (path / "manifest.json").string()));
}

void copy_generation_config(const fs::path& file, const fs::path& directory) {
  std::error_code error;
  if (fs::is_regular_file(file, error)) write_file_atomically(directory / kGenerationConfig, read_file(file));
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
