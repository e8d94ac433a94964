#include "octet/train/fetch.h"

#include <fnmatch.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

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

// The part of an object's name that a pattern matches: the name, or a folder above the object. "": none.
std::string match_of(const std::string& pattern, const std::string& name) {
  for (std::size_t end = name.find('/');; end = name.find('/', end + 1)) {
    const std::string begin = name.substr(0, end);
    if (::fnmatch(pattern.c_str(), begin.c_str(), FNM_PATHNAME | FNM_PERIOD) == 0) return begin;
    if (end == std::string::npos) return "";
  }
}

// Adds an object to a set. Some programs make objects that stand for folders. Their names end with `/`, and they are left out.
void add_object(storage::CopySet& set, const std::string& name) {
  if (name.empty() || name.ends_with('/')) return;
  demand(is_relative_path(name), ExitCode::data, set.url.below(name).text(),
         ": this cannot be the name of a file, because a part of it is empty, \".\" or \"..\"");
  set.names.push_back(name);
}

}  // namespace

fs::path fetch_folder(const fs::path& path, Fetch what, const ShowCopy& show, double retry_s) {
  if (!storage::is_object_url(path.string())) return path;
  storage::ObjectStore store(retry_s);
  const storage::ObjectUrl url = storage::parse_object_url(path.string());
  const storage::CopySet set = objects_in(store, url, what);
  if (set.names.empty()) {
    fail(ExitCode::data, url.text(), ": there are no objects in this folder",
         newest_checkpoint(store, url) ? ", but checkpoints of a run below it; `octet convert export` makes a model of one" : "");
  }
  return copy_of(store, set, url.text(), show);
}

fs::path fetch_checkpoint(const fs::path& path, Fetch what, const ShowCopy& show, double retry_s) {
  if (!storage::is_object_url(path.string())) return path;
  storage::ObjectStore store(retry_s);
  const std::optional<storage::ObjectUrl> newest = newest_checkpoint(store, storage::parse_object_url(path.string()));
  return fetch_folder(newest ? fs::path(newest->text()) : path, what, show, retry_s);
}

std::vector<fs::path> fetch_texts(const fs::path& path, const ShowCopy& show) {
  const std::string text = path.string();
  if (!storage::is_object_url(text)) return {path};
  storage::ObjectStore store;
  const std::size_t special = text.find_first_of("*?[");
  if (special == std::string::npos || text.find('?') == std::string::npos) {  // a key may have * and [
    const storage::ObjectUrl url = storage::parse_object_url(text);
    if (!url.key.empty() && store.find(url)) {
      const auto [folder, name] = cut_name(url);
      return {copy_of(store, {.url = folder, .names = {name}, .folder = url.key}, url.text(), show) / name};
    }
    storage::CopySet set = {.url = url, .names = {}};
    for (const storage::ListedObject& object : store.list(url)) add_object(set, object.name);
    if (!set.names.empty()) return {copy_of(store, set, url.text(), show)};
    demand(special != std::string::npos, ExitCode::data, url.text(), ": no such object, and none in a folder of this name");
  }
  const std::size_t slash = text.rfind('/', special);
  const std::string pattern = text.substr(slash + 1);
  storage::CopySet set = {.url = storage::parse_object_url(text.substr(0, slash)), .names = {}};
  std::set<std::string> matches;
  for (const storage::ListedObject& object : store.list(set.url)) {
    const std::string match = match_of(pattern, object.name);
    if (match.empty()) continue;
    add_object(set, object.name);
    matches.insert(match);
  }
  demand(!set.names.empty(), ExitCode::data, text, ": no object or folder matches this");
  const fs::path copy = copy_of(store, set, text, show);
  std::vector<fs::path> paths;
  for (const std::string& match : matches) paths.push_back(copy / match);
  return paths;
}

fs::path fetch_corpus(const fs::path& prefix, const ShowCopy& show, double retry_s) {
  if (!storage::is_object_url(prefix.string())) return prefix;
  storage::ObjectStore store(retry_s);
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

bool use_copies(Config& config, const std::map<std::string, std::string>& copies) {
  const std::size_t before = config.copies.size();
  for_each_fetched_path(config, [&](std::string& path) {
    const auto found = std::find_if(copies.begin(), copies.end(), [&](const auto& copy) { return copy.second == path; });
    if (found != copies.end()) use_copy(config, path, found->first);
  });
  return config.copies.size() > before;
}

void fetch_base(Config& config, const ShowCopy& show) {
  use_copy(config, config.model.init_from,
           fetch_folder(config.model.init_from, Fetch::everything, show, config.checkpoint.retry_s));
}

void fetch_resumed(Config& config, Fetch what, const ShowCopy& show) {
  std::string& path = config.checkpoint.resume;
  use_copy(config, path, fetch_checkpoint(path, what, show, config.checkpoint.retry_s));
}

void fetch_inputs(Config& config, Fetch what, const ShowCopy& show) {
  const double retry_s = config.checkpoint.retry_s;
  std::string& model = config.model.init_from;
  if (what == Fetch::architecture) return use_copy(config, model, fetch_folder(model, what, show, retry_s));
  fetch_base(config, show);
  const bool may_begin = config.checkpoint.resume == "auto" || config.checkpoint.resume == "none";
  if (config.lora && may_begin)
    use_copy(config, config.lora->init_from, fetch_folder(config.lora->init_from, Fetch::everything, show, retry_s));
  for (SourceConfig& source : config.data.source) use_copy(config, source.path, fetch_corpus(source.path, show, retry_s));
  for (EvaluationSourceConfig& source : config.evaluation.source)
    use_copy(config, source.path, fetch_corpus(source.path, show, retry_s));
}

}  // namespace octet::train
