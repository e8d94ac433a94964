#include "octet/train/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "octet/base/directory.h"
#include "octet/base/json.h"
#include "octet/base/log.h"
#include "octet/base/require.h"
#include "octet/base/retry.h"
#include "octet/base/system_call.h"
#include "octet/checkpoint/reader.h"
#include "octet/checkpoint/steps.h"
#include "octet/data/chat/template.h"
#include "octet/data/corpus.h"
#include "octet/data/tokenizer/files.h"
#include "octet/data/tokenizer/tokenizer.h"
#include "octet/telemetry/format.h"
#include "octet/train/fetch.h"
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
constexpr const char* kChatTemplate = "chat_template.jinja";

// The names of the chat templates of the corpora that are trained on, each once.
std::vector<std::string> templates_of(const data::Dataset& dataset) {
  std::vector<std::string> names;
  for (std::int64_t s = 0; s < dataset.sources(); ++s) {
    const auto& info = dataset.corpus(s).info();
    if (!dataset.trains_on(s) || !info || !info->chat) continue;
    if (std::find(names.begin(), names.end(), info->chat->form) == names.end()) names.push_back(info->chat->form);
  }
  return names;
}

// Adds ids to eos_token_id of a generation_config.json. Programs that read this file do not look into config.json.
void add_ends_of_text(const fs::path& file, const std::vector<std::int64_t>& ids) {
  Json json = read_ordered_json(file);
  demand(json.is_object(), ExitCode::data, file.string(), ": not a JSON object");
  Json ends = json.value("eos_token_id", Json());
  if (!ends.is_array()) ends = ends.is_null() ? Json::array() : Json::array({ends});
  const std::size_t before = ends.size();
  for (const std::int64_t id : ids) {
    if (std::find(ends.begin(), ends.end(), id) == ends.end()) ends.push_back(id);
  }
  if (ends.size() == before) return;
  json["eos_token_id"] = ends;
  write_file_atomically(file, json.dump(2) + "\n");
}

fs::path checkpoints_of(const Config& config) { return fs::path(config.run.output_dir) / "checkpoints"; }
fs::path kept_tokenizer(const Config& config) { return (checkpoints_of(config) / kKeptTokenizer).lexically_normal(); }

// The folder with the tokenizer and the generation_config.json of a checkpoint. A checkpoint from checkpoint.remote holds them
// itself. Those of a run share the folder beside them.
fs::path kept_for(const fs::path& checkpoint) {
  const bool holds = data::tokenizer_file(checkpoint.string()) || is_file(checkpoint / kGenerationConfig);
  return holds ? checkpoint : (checkpoint / ".." / kKeptTokenizer).lexically_normal();
}

// The same for the checkpoint from which a run continues, or "" if the run begins.
fs::path kept_for_resumed(const Config& config) {
  const std::string& resume = config.checkpoint.resume;
  if (resume == "none") return {};
  if (resume != "auto") return kept_for(resume);
  const auto found =
      retry(config.checkpoint.retry_s, [&] { return checkpoint::find_checkpoints(checkpoints_of(config)); });
  if (!found.empty()) return kept_for(found.front().path);
  return init_from_is_gone(config) ? kept_tokenizer(config) : fs::path();  // the run may continue from a snapshot in memory
}

// The generation_config.json that a run copies. The path is empty if there is none, and the file need not exist.
fs::path generation_config_of_run(const Config& config) {
  const bool begins_there = !config.model.init_from.empty() && !init_from_is_gone(config);
  const fs::path from = begins_there ? fs::path(config.model.init_from) : kept_for_resumed(config);
  return from.empty() ? from : from / kGenerationConfig;
}

// The configuration of the run that wrote a checkpoint.
Config config_of_checkpoint(const fs::path& checkpoint) {
  Config config =
      parse_config(checkpoint::meta_of(checkpoint).value("toml", ""), (checkpoint / checkpoint::kManifestName).string());
  config.checkpoint.resume = checkpoint.string();
  try {
    config.model.init_from = fetch_folder(config.model.init_from, Fetch::architecture).string();
  } catch (const Error& error) {
    log_warning(error.what());  // the checkpoint can be used without
  }
  return config;
}

bool is_checkpoint(const fs::path& path) { return path_exists(path / checkpoint::kManifestName); }

}  // namespace

std::string tokenizer_of_run(const Config& config, const models::DecoderConfig& model) {
  if (!model.tokenizer.empty()) return model.tokenizer;
  for (const std::string& directory : {config.model.init_from, kept_for_resumed(config).string()})
    if (data::tokenizer_file(directory)) return directory;
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

void keep_tokenizer(const Config& config, const models::DecoderConfig& model, const data::Dataset& dataset) {
  const fs::path kept = kept_tokenizer(config), part = kept.string() + ".part";
  const auto file = data::tokenizer_file(tokenizer_of_run(config, model));
  const fs::path generation = generation_config_of_run(config);
  if (path_exists(kept) && (file ? file->parent_path() : generation.parent_path()) == kept) return;
  remove_tree(part);
  if (!file && !is_file(generation)) return remove_tree(kept);  // it belongs to another run
  make_folders(part);
  if (file) data::copy_tokenizer_files(*file, part);
  copy_generation_config(generation, part);
  if (const std::vector<std::string> templates = templates_of(dataset); !templates.empty()) {
    const std::string_view jinja = data::jinja_of(templates.front());
    if (file && !data::has_chat_template(part) && !jinja.empty()) write_file_atomically(part / kChatTemplate, jinja);
    if (is_file(part / kGenerationConfig)) add_ends_of_text(part / kGenerationConfig, model.eos);
  }
  remove_tree(kept);
  if (std::rename(part.c_str(), kept.c_str()) != 0) fail_errno(ExitCode::internal, kept, "cannot rename");
}

void export_tokenizer(const Config& config, const models::DecoderConfig& model, const fs::path& directory) {
  const fs::path kept = kept_tokenizer(config);  // all else may have been deleted since the run began
  copy_tokenizer(data::tokenizer_file(kept.string()) ? kept.string() : tokenizer_of_run(config, model), directory, directory);
  copy_generation_config(kept / kGenerationConfig, directory);
}

std::string tokenizer_of_model(const fs::path& path, const models::DecoderConfig& model) {
  if (!model.tokenizer.empty()) return model.tokenizer;
  if (!is_checkpoint(path)) return find_model(path).model.string();
  const std::string kept = kept_for(path).string();
  return data::tokenizer_file(kept) ? kept : tokenizer_of_run(config_of_checkpoint(path), model);
}

void copy_tokenizer(const std::string& tokenizer, const fs::path& directory, const fs::path& name) {
  if (const auto file = data::tokenizer_file(tokenizer)) return data::copy_tokenizer_files(*file, directory);
  if (tokenizer.find('/') != std::string::npos) {
    log_warning(concat(name.string(), ": written without a tokenizer, because there are no tokenizer files in ", tokenizer));
  }
}

fs::path generation_config_of_model(const fs::path& path) {
  if (!is_checkpoint(path)) return find_model(path).model / kGenerationConfig;
  const fs::path kept = kept_for(path);
  return path_exists(kept) ? kept / kGenerationConfig : generation_config_of_run(config_of_checkpoint(path));
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

models::DecoderConfig with_answer_ends(models::DecoderConfig model, const Config& config, const data::Dataset& dataset,
                                       const std::string& tokenizer) {
  const std::vector<std::string> templates = templates_of(dataset);
  if (templates.empty() || !data::tokenizer_file(tokenizer)) return model;
  try {
    const auto known = data::make_tokenizer(tokenizer);
    for (const std::string& name : templates) {
      const data::ChatFormat format = data::chat_format(name, data::TrainOn::assistant, *known);
      const std::int64_t end = data::end_of_answer(format, *known).front();
      if (end >= model.vocab || std::find(model.eos.begin(), model.eos.end(), end) != model.eos.end()) continue;
      const std::string found =
          fmt::format("template {} ends an answer with token {}, which is not in the model's eos_token_id ({})", name, end,
                      model.eos.empty() ? "null" : fmt::format("{}", fmt::join(model.eos, ", ")));
      if (config.lora) {
        log_warning(concat(found, "; an adapter cannot say so: merge it with `octet convert export --checkpoint ",
                           config.run.output_dir, "`, or tell the server to stop at ", end));
      } else {
        log_info(concat(found, "; the model that this run writes has it there, too"));
      }
      model.eos.push_back(end);
    }
  } catch (const Error& error) {
    log_warning(concat(error.what(), "; the model's eos_token_id may lack the token that ends an answer"));
  }
  return model;
}

}  // namespace octet::train
