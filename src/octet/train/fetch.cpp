#include "octet/train/fetch.h"

#include <fnmatch.h>

#include <algorithm>
#include <optional>
#include <string_view>

#include "octet/base/require.h"
#include "octet/checkpoint/remote.h"
#include "octet/checkpoint/untrusted.h"

namespace octet::train {
namespace {

namespace fs = std::filesystem;

fs::path copy_of(storage::ObjectStore& store, const storage::CopySet& set, const std::string& label, const ShowCopy& show) {
  return storage::local_copy(store, set, storage::copies_folder(), show ? show("copying " + label) : storage::CopyProgress());
}

void use_copy(Config& config, std::string& path, const fs::path& copy) {
  if (path == copy) return;
  config.copies[copy.string()] = path;
  path = copy.string();
}

bool holds_weights(const std::string& name) {
  return name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json");
}

storage::CopySet objects_in(storage::ObjectStore& store, const storage::ObjectUrl& folder, Fetch what) {
  storage::CopySet set = {.url = folder, .names = {}};
  for (const storage::ListedObject& object : store.list(folder)) {
    if (!checkpoint::is_file_name(object.name)) continue;  // in a folder below
    if (what == Fetch::everything || !holds_weights(object.name)) set.names.push_back(object.name);
  }
  return set;
}

std::optional<storage::ObjectUrl> newest_checkpoint(storage::ObjectStore& store, const storage::ObjectUrl& run) {
  for (const checkpoint::RemoteCheckpoint& found : checkpoint::remote_checkpoints(store, run)) {
    if (!found.abandoned) return run.below(found.name);
  }
  return std::nullopt;
}

// The name of an object below a folder, which may lie in folders of its own.
bool is_relative_path(std::string_view name) {
  for (;;) {
    const std::size_t slash = std::min(name.find('/'), name.size());
    if (!checkpoint::is_file_name(name.substr(0, slash))) return false;
    if (slash == name.size()) return true;
    name.remove_prefix(slash + 1);
  }
}

// The folder of an object, and the object's name there.
std::pair<storage::ObjectUrl, std::string> cut_name(storage::ObjectUrl url) {
  const std::size_t slash = url.key.rfind('/');
  std::string name = slash == std::string::npos ? url.key : url.key.substr(slash + 1);
  url.key.resize(slash == std::string::npos ? 0 : slash);
  return {std::move(url), std::move(name)};
}

// Cuts s3://bucket/texts/2024-*/*.jsonl into s3://bucket/texts and 2024-*/*.jsonl. The pattern is empty if there is none.
std::pair<storage::ObjectUrl, std::string> cut_pattern(storage::ObjectUrl url) {
  const std::size_t special = url.key.find_first_of("*?[");
  if (special == std::string::npos) return {std::move(url), ""};
  const std::size_t slash = url.key.rfind('/', special);
  std::string pattern = slash == std::string::npos ? url.key : url.key.substr(slash + 1);
  url.key.resize(slash == std::string::npos ? 0 : slash);
  return {std::move(url), std::move(pattern)};
}

}  // namespace

fs::path fetch_folder(const fs::path& path, Fetch what, const ShowCopy& show) {
  if (!storage::is_object_url(path.string())) return path;
  storage::ObjectStore store;
  const storage::ObjectUrl url = storage::parse_object_url(path.string());
  storage::CopySet set = objects_in(store, url, what);
  if (set.names.empty()) {
    const std::optional<storage::ObjectUrl> newest = newest_checkpoint(store, url);
    demand(newest.has_value(), ExitCode::data, url.text(), ": there are no objects in this folder");
    set = objects_in(store, *newest, what);
  }
  return copy_of(store, set, set.url.text(), show);
}

fs::path fetch_texts(const fs::path& path, const ShowCopy& show) {
  if (!storage::is_object_url(path.string())) return path;
  storage::ObjectStore store;
  const storage::ObjectUrl url = storage::parse_object_url(path.string());
  if (!url.key.empty() && store.find(url)) {
    const auto [folder, name] = cut_name(url);
    return copy_of(store, {.url = folder, .names = {name}, .folder = url.key}, url.text(), show) / name;
  }
  const auto [folder, pattern] = cut_pattern(url);
  storage::CopySet set = {.url = folder, .names = {}};
  for (const storage::ListedObject& object : store.list(folder)) {
    const bool wanted = pattern.empty() || ::fnmatch(pattern.c_str(), object.name.c_str(), FNM_PATHNAME | FNM_PERIOD) == 0;
    if (wanted && is_relative_path(object.name)) set.names.push_back(object.name);
  }
  demand(!set.names.empty(), ExitCode::data, url.text(), ": ",
         pattern.empty() ? "no such object, and none in a folder of this name" : "no object matches this");
  return copy_of(store, set, url.text(), show);
}

fs::path fetch_corpus(const fs::path& prefix, const ShowCopy& show) {
  if (!storage::is_object_url(prefix.string())) return prefix;
  storage::ObjectStore store;
  storage::ObjectUrl url = storage::parse_object_url(prefix.string());
  for (const std::string_view extension : {".bin", ".idx", ".json"}) {
    if (url.key.ends_with(extension)) url.key.resize(url.key.size() - extension.size());
  }
  const std::string stem = url.key.substr(url.key.rfind('/') + 1);
  storage::CopySet set = {.url = url, .names = {}};
  for (const char* extension : {".bin", ".idx", ".json", ".loss.bin", ".loss.idx"}) {
    if (store.find({.bucket = url.bucket, .key = url.key + extension})) set.names.push_back(stem + extension);
  }
  demand(!set.names.empty() && !stem.empty(), ExitCode::data, url.text(), ": no corpus here (there is no ", url.text(), ".idx)");
  set.url.key.resize(url.key.size() - stem.size());
  while (set.url.key.ends_with('/')) set.url.key.pop_back();
  set.folder = url.key;
  return copy_of(store, set, url.text(), show) / stem;
}

void fetch_base(Config& config, const ShowCopy& show) {
  use_copy(config, config.model.init_from, fetch_folder(config.model.init_from, Fetch::everything, show));
  if (config.lora) use_copy(config, config.lora->init_from, fetch_folder(config.lora->init_from, Fetch::everything, show));
}

void fetch_resumed(Config& config, Fetch what, const ShowCopy& show) {
  use_copy(config, config.checkpoint.resume, fetch_folder(config.checkpoint.resume, what, show));
}

void fetch_inputs(Config& config, Fetch what, const ShowCopy& show) {
  if (what == Fetch::architecture)
    return use_copy(config, config.model.init_from, fetch_folder(config.model.init_from, what, show));
  fetch_base(config, show);
  for (SourceConfig& source : config.data.source) use_copy(config, source.path, fetch_corpus(source.path, show));
  for (EvaluationSourceConfig& source : config.evaluation.source) use_copy(config, source.path, fetch_corpus(source.path, show));
}

}  // namespace octet::train
