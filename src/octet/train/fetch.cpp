#include "octet/train/fetch.h"

#include <algorithm>

#include "octet/base/require.h"
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

}  // namespace

fs::path fetch_folder(const fs::path& path, Fetch what, const ShowCopy& show) {
  if (!storage::is_object_url(path.string())) return path;
  storage::ObjectStore store;
  storage::CopySet set = {.url = storage::parse_object_url(path.string()), .names = {}};
  for (const storage::ListedObject& object : store.list(set.url)) {
    if (!checkpoint::is_file_name(object.name)) continue;  // in a folder below
    if (what == Fetch::everything || !holds_weights(object.name)) set.names.push_back(object.name);
  }
  demand(!set.names.empty(), ExitCode::data, set.url.text(), ": there are no objects in this folder");
  return copy_of(store, set, set.url.text(), show);
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

void fetch_inputs(Config& config, Fetch what, const ShowCopy& show) {
  if (what == Fetch::architecture)
    return use_copy(config, config.model.init_from, fetch_folder(config.model.init_from, what, show));
  fetch_base(config, show);
  for (SourceConfig& source : config.data.source) use_copy(config, source.path, fetch_corpus(source.path, show));
  for (EvaluationSourceConfig& source : config.evaluation.source) use_copy(config, source.path, fetch_corpus(source.path, show));
}

}  // namespace octet::train
