#include "octet/data/set_aside.h"

#include <algorithm>
#include <cstdio>
#include <vector>

#include "octet/base/directory.h"
#include "octet/base/file.h"
#include "octet/base/json.h"
#include "octet/base/log.h"
#include "octet/base/require.h"
#include "octet/base/system_call.h"

namespace octet::data {
namespace {

namespace fs = std::filesystem;

// PREFIX.json comes last, because as long as it exists it tells which command made these files.
std::vector<fs::path> files_of(const CorpusPaths& corpus) {
  return {corpus.bin, corpus.idx, corpus.loss_bin, corpus.loss_idx, corpus.checked, corpus.json};
}

bool is_made_by(const CorpusPaths& corpus, const std::string& command) {
  if (!path_exists(corpus.json)) return false;
  const Json json = json_of(read_file(corpus.json));
  return json.is_object() && json.contains("command") && json["command"] == command;
}

}  // namespace

void rename_file(const fs::path& from, const fs::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) fail_errno(ExitCode::internal, to, "cannot rename");
}

void set_corpus_aside(const CorpusPaths& corpus, const std::string& command) {
  if (is_made_by(corpus, command)) return;
  const std::vector<fs::path> files = files_of(corpus);
  const auto is_there = [](const fs::path& path) { return path_exists(path); };
  if (std::none_of(files.begin(), files.end(), is_there)) return;
  for (int number = 1;; ++number) {
    const CorpusPaths aside(fs::path(corpus.prefix).concat(concat("-", number)));
    const std::vector<fs::path> names = files_of(aside);
    // A name that exists is no obstacle if no file would be renamed to it.
    bool is_free = true;
    for (std::size_t i = 0; i < files.size(); ++i) is_free = is_free && !(path_exists(files[i]) && path_exists(names[i]));
    if (!is_free) continue;
    for (std::size_t i = 0; i < files.size(); ++i) {
      if (path_exists(files[i])) rename_file(files[i], names[i]);
    }
    log_info(concat("kept the earlier corpus, made by another command, as ", aside.prefix.string()));
    return;
  }
}

}  // namespace octet::data
