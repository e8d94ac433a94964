#include "octet/data/input_files.h"

#include <glob.h>

#include <algorithm>
#include <cerrno>
#include <fstream>

#include "octet/base/directory.h"
#include "octet/base/require.h"
#include "octet/data/byte_source.h"
#include "octet/data/corpus_index.h"
#include "octet/data/corpus_parts.h"

namespace octet::data {
namespace fs = std::filesystem;
namespace {

bool starts_with(std::string_view text, std::string_view begin) { return text.substr(0, begin.size()) == begin; }

fs::path canonical_folder(const fs::path& path) {
  std::error_code error;
  fs::path result = fs::weakly_canonical(path.empty() ? fs::path(".") : path, error);
  return error ? path : result;
}

bool is_left_out(const fs::path& name, bool folder) {
  const std::string text = name.string();
  return starts_with(text, ".") || (folder && (text == "build" || text == "out"));
}

bool before(const fs::path& a, const fs::path& b) { return a.native() < b.native(); }

// The files and folders that a shell pattern matches, in byte order.
std::vector<fs::path> matches_of(const fs::path& pattern) {
  glob_t found{};
  const auto stops_at = [](const char*, int error) { return error == ENOENT || error == ENOTDIR ? 0 : 1; };
  const int result = ::glob(pattern.c_str(), 0, stops_at, &found);
  std::vector<fs::path> paths(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  ::globfree(&found);
  demand(result == 0, ExitCode::data, pattern.string(), ": ",
         result == GLOB_NOMATCH ? "no file or folder matches this" : "cannot read a folder of this pattern");
  std::sort(paths.begin(), paths.end(), before);
  return paths;
}

// Replaces each pattern by its matches. An input that exists under its literal name is not treated as a pattern.
std::vector<fs::path> without_patterns(const std::vector<fs::path>& inputs) {
  std::vector<fs::path> paths;
  for (const fs::path& input : inputs) {
    if (input.native().find_first_of("*?[") == std::string::npos || path_exists(input)) {
      paths.push_back(input);
    } else {
      for (const fs::path& match : matches_of(input)) paths.push_back(match);
    }
  }
  return paths;
}

bool begins_with(const fs::path& path, std::string_view begin) {
  std::string bytes(begin.size(), '\0');
  std::error_code error;
  return fs::is_regular_file(path, error) &&
         std::ifstream(path, std::ios::binary).read(bytes.data(), static_cast<std::streamsize>(bytes.size())) && bytes == begin;
}

// An .idx and a .json are recognised by their contents. A .bin and a .checked belong to a corpus if such an .idx stands beside
// them.
bool is_of_corpus(const fs::path& path) {
  const std::string extension = lower_extension(path);
  if (extension == ".json") return begins_with(path, kCorpusInfoBegin);
  const bool beside_index = extension == ".idx" || extension == ".bin" || extension == ".checked";
  return beside_index &&
         begins_with(fs::path(path).replace_extension(".idx"), std::string_view(kIndexMagic.data(), kIndexMagic.size()));
}

}  // namespace

InputFormat input_format(const fs::path& path, InputFormat chosen) {
  if (chosen != InputFormat::automatic) return chosen;
  if (lower_extension(path) == ".parquet") return InputFormat::parquet;
  const std::string extension = lower_extension(unpacked_name(path));
  return extension == ".jsonl" || extension == ".ndjson" ? InputFormat::jsonl : InputFormat::text;
}

std::string unreadable_kind(const fs::path& path) {
  const std::string extension = lower_extension(path);
  const bool packed_parquet = extension != ".parquet" && lower_extension(unpacked_name(path)) == ".parquet";
  if (packed_parquet) return concat(extension, " around Parquet is not supported; unpack it first");
  constexpr std::string_view kPacked[] = {".xz",  ".bz2",  ".zip", ".7z",   ".rar",  ".tar",
                                          ".tgz", ".tbz2", ".txz", ".tzst", ".arrow"};
  const std::string inner = lower_extension(unpacked_name(path));
  const bool packed = std::find(std::begin(kPacked), std::end(kPacked), inner) != std::end(kPacked);
  return packed ? concat(inner, inner == extension ? "" : extension, " input is not supported; unpack it first") : "";
}

InputFiles::InputFiles(std::vector<fs::path> inputs, const CorpusPaths& output)
    : inputs_(without_patterns(inputs)),
      output_folder_(canonical_folder(output.bin.parent_path())),
      output_names_({output.bin.filename().string(), output.idx.filename().string(), output.json.filename().string(),
                     output.checked.filename().string(), output.loss_bin.filename().string(), output.loss_idx.filename().string(),
                     concat(output.prefix.filename().string(), ".seen", kPartSuffix),
                     concat(output.prefix.filename().string(), ".lock", kPartSuffix)}) {
  demand(std::count(inputs_.begin(), inputs_.end(), "-") <= 1, ExitCode::config,
         "data prepare: standard input (-) is given twice");
  for (const fs::path& input : inputs_) {
    if (input == "-") continue;
    std::error_code error;
    const fs::file_status status = fs::status(input, error);
    demand(fs::exists(status), ExitCode::data, input.string(), ": ", error ? error.message() : "no such file or folder");
    demand(fs::is_directory(status) || fs::is_regular_file(status), ExitCode::data, input.string(),
           ": neither a file nor a folder");
    demand(fs::is_directory(status) || !is_output(input), ExitCode::config, input.string(), ": is both input and output");
    const std::string why = fs::is_directory(status) ? "" : unreadable_kind(input);
    demand(why.empty(), ExitCode::config, input.string(), ": ", why);
    demand(fs::is_directory(status) || !is_of_corpus(input), ExitCode::config, input.string(),
           ": belongs to a corpus that is already prepared. Train on it with path = \"",
           fs::path(input).replace_extension().string(), "\" in [[data.source]]");
  }
}

bool InputFiles::is_output(const fs::path& path) const {
  const std::string name = path.filename().string();
  const bool named_so = std::any_of(output_names_.begin(), output_names_.end(), [&](const std::string& output) {
    return name == output || starts_with(name, output + kPartSuffix) || starts_with(name, output + ".tmp-");
  });
  return named_so && canonical_folder(path.parent_path()) == output_folder_;
}

void InputFiles::enter(const fs::path& folder) {
  Folder opened;
  try {
    for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
      std::error_code error;
      const bool inner_folder = entry.is_directory(error);
      if (is_left_out(entry.path().filename(), inner_folder)) continue;
      if (!inner_folder && (is_output(entry.path()) || is_of_corpus(entry.path()))) continue;
      // The text may lie on a disk that is not there now, and must not be missing in silence.
      const bool leads_nowhere = error == std::errc::no_such_file_or_directory && entry.is_symlink();
      demand(!leads_nowhere, ExitCode::data, entry.path().string(), ": a link that leads nowhere; repair or remove it");
      demand(!error, ExitCode::data, entry.path().string(), ": ", error.message());
      if (inner_folder && entry.is_symlink()) {  // it may be a cycle
        linked_folders_.push_back(entry.path());
        continue;
      }
      if (inner_folder || entry.is_regular_file(error)) opened.entries.push_back(entry.path());
    }
  } catch (const fs::filesystem_error& error) {
    fail(ExitCode::data, folder.string(), ": ", error.code().message());
  }
  std::sort(opened.entries.begin(), opened.entries.end(), before);
  open_.push_back(std::move(opened));
}

std::optional<InputFiles::File> InputFiles::next() {
  for (;;) {
    fs::path path;
    bool named = false;
    if (!open_.empty()) {
      Folder& folder = open_.back();
      if (folder.next == folder.entries.size()) {
        open_.pop_back();
        continue;
      }
      path = folder.entries[folder.next++];
    } else if (next_input_ < inputs_.size()) {
      path = inputs_[next_input_++];
      named = true;
    } else {
      return std::nullopt;
    }
    if (path == "-") return File{path, 0, named};
    if (is_folder(path)) {
      enter(path);
      continue;
    }
    std::error_code error;
    const auto bytes = fs::file_size(path, error);
    demand(!error, ExitCode::data, path.string(), ": ", error.message());
    return File{path, static_cast<std::int64_t>(bytes), named};
  }
}

}  // namespace octet::data
