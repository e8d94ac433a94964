#include "octet/data/corpus_parts.h"

#include "octet/base/file.h"
#include "octet/base/require.h"
#include "octet/base/system_call.h"

namespace octet::data {
namespace fs = std::filesystem;
namespace {

fs::path part_of(fs::path path, const char* suffix = "") { return path += std::string(suffix) + kPartSuffix; }

fs::path folder_of(const fs::path& file) { return file.has_parent_path() ? file.parent_path() : fs::path("."); }

FileLock lock_of(const CorpusPaths& finals) {
  demand(finals.prefix.has_filename(), ExitCode::config, "output prefix \"", finals.prefix.string(),
         "\" must end in a name, as in data/corpus");
  const fs::path folder = folder_of(finals.bin);
  std::error_code error;
  fs::create_directories(folder, error);
  std::error_code unknown;
  demand(fs::is_directory(folder, unknown), ExitCode::config, folder.string(), ": cannot create this folder: ", error.message());
  return create_output([&] { return FileLock(part_of(finals.prefix, ".lock"), finals.prefix.string()); });
}

}  // namespace

CorpusParts::CorpusParts(const fs::path& prefix)
    : finals_(prefix),
      bin_(part_of(finals_.bin)),
      idx_(part_of(finals_.idx)),
      loss_bin_(part_of(finals_.loss_bin)),
      loss_idx_(part_of(finals_.loss_idx)),
      seen_(part_of(finals_.prefix, ".seen")),
      journal_(part_of(finals_.json)),
      lock_(lock_of(finals_)) {}

void CorpusParts::remove() const {
  std::error_code ignored;
  for (const fs::path& path : {journal_, finals_.json}) remove_interrupted_writes(path);
  for (const fs::path& path : {journal_, seen_, idx_, bin_, loss_idx_, loss_bin_}) fs::remove(path, ignored);
}

}  // namespace octet::data
