#include "octet/data/input.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "octet/base/log.h"
#include "octet/base/require.h"
#include "octet/data/jsonl.h"
#include "octet/data/text.h"

namespace octet::data {
namespace fs = std::filesystem;
namespace {

constexpr std::size_t kScanBytes = 1 << 18;

bool starts_with(std::string_view text, std::string_view begin) { return text.substr(0, begin.size()) == begin; }

fs::path canonical_folder(const fs::path& path) {
  std::error_code error;
  fs::path result = fs::weakly_canonical(path.empty() ? fs::path(".") : path, error);
  return error ? path : result;
}

std::string lower_extension(const fs::path& path) {
  std::string extension = path.extension().string();
  std::transform(extension.begin(), extension.end(), extension.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  return extension;
}

// Formats that a user may expect to work; saying so beats "not text".
bool is_packed(const fs::path& path) {
  constexpr std::array<std::string_view, 8> kPacked = {".gz", ".zst", ".xz", ".bz2", ".zip", ".tar", ".parquet", ".arrow"};
  return std::find(kPacked.begin(), kPacked.end(), lower_extension(path)) != kPacked.end();
}

bool is_left_out(const fs::path& name, bool folder) {
  const std::string text = name.string();
  return starts_with(text, ".") || (folder && (text == "build" || text == "out"));
}

}  // namespace

InputFiles::InputFiles(std::vector<fs::path> inputs, const CorpusPaths& output)
    : inputs_(std::move(inputs)),
      output_folder_(canonical_folder(output.bin.parent_path())),
      output_names_({output.bin.filename().string(), output.idx.filename().string(), output.json.filename().string()}) {
  for (const fs::path& input : inputs_) {
    std::error_code error;
    const fs::file_status status = fs::status(input, error);
    demand(fs::exists(status), ExitCode::data, input.string(), ": ", error ? error.message() : "no such file or folder");
    demand(fs::is_directory(status) || fs::is_regular_file(status), ExitCode::data, input.string(),
           ": neither a file nor a folder");
    demand(fs::is_directory(status) || !is_output(input), ExitCode::config, input.string(), ": is both input and output");
  }
}

bool InputFiles::is_output(const fs::path& path) const {
  const std::string name = path.filename().string();
  const bool named_so = std::any_of(output_names_.begin(), output_names_.end(), [&](const std::string& output) {
    return name == output || starts_with(name, output + ".tmp-");
  });
  return named_so && canonical_folder(path.parent_path()) == output_folder_;
}

void InputFiles::enter(const fs::path& folder) {
  Folder opened;
  try {
    for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
      const bool inner_folder = entry.is_directory();
      if (is_left_out(entry.path().filename(), inner_folder)) continue;
      if (inner_folder ? entry.is_symlink() : !entry.is_regular_file()) continue;  // a link to a folder may be a cycle
      if (!inner_folder && is_output(entry.path())) continue;
      opened.entries.push_back(entry.path());
    }
  } catch (const fs::filesystem_error& error) {
    fail(ExitCode::data, folder.string(), ": ", error.code().message());
  }
  std::sort(opened.entries.begin(), opened.entries.end(),
            [](const fs::path& a, const fs::path& b) { return a.native() < b.native(); });
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
    std::error_code error;
    if (fs::is_directory(path, error)) {
      enter(path);
      continue;
    }
    const auto bytes = fs::file_size(path, error);
    demand(!error, ExitCode::data, path.string(), ": ", error.message());
    return File{path, static_cast<std::int64_t>(bytes), named};
  }
}

InputFormat input_format(const fs::path& path) {
  const std::string extension = lower_extension(path);
  return extension == ".jsonl" || extension == ".ndjson" ? InputFormat::jsonl : InputFormat::text;
}

TaskReader::TaskReader(InputFiles files, const Tokenizer& tokenizer, std::size_t task_bytes, std::size_t max_piece)
    : files_(std::move(files)), tokenizer_(tokenizer), task_bytes_(task_bytes), max_piece_(max_piece) {}

bool TaskReader::next(Task& task) {
  // Also bounded by what it has passed over, so that a folder of videos shows progress.
  const auto full = [&] {
    return task.bytes.size() >= task_bytes_ || task.bytes_passed >= static_cast<std::int64_t>(64 * task_bytes_);
  };
  while (!full()) {
    if (!file_ && !open_next(task)) break;
    if (!file_) continue;
    const InputFormat format = input_format(file_->path);
    const bool mixed = !task.segments.empty() && (task.format != format || format == InputFormat::jsonl);
    if (mixed) break;
    task.format = format;
    format == InputFormat::text ? read_text(task) : read_jsonl(task);
  }
  return task.files > 0 || task.skipped_files > 0 || task.bytes_passed > 0;
}

// Opens the next file, or passes over one that is not text (then no file is open). False at the end of the input.
bool TaskReader::open_next(Task& task) {
  file_ = files_.next();
  if (!file_) return false;
  if (file_->named && is_packed(file_->path)) {
    fail(ExitCode::config, file_->path.string(), ": ", lower_extension(file_->path), " input is not supported; unpack it first");
  }
  stream_ = std::ifstream(file_->path, std::ios::binary);
  demand(stream_.is_open(), ExitCode::data, file_->path.string(), ": cannot open: ", std::strerror(errno));
  at_end_ = false;
  rest_.clear();
  line_ = 0;
  if (input_format(file_->path) == InputFormat::text && !is_text()) {
    ++task.skipped_files;
    task.bytes_passed += file_->bytes;
    task.skipped_bytes += file_->bytes;
    file_.reset();
  }
  return true;
}

std::size_t TaskReader::read_more(std::string& to, std::size_t bytes) {
  const std::size_t before = to.size();
  to.resize(before + bytes);
  stream_.read(to.data() + before, static_cast<std::streamsize>(bytes));
  const auto got = static_cast<std::size_t>(stream_.gcount());
  to.resize(before + got);
  demand(!stream_.bad(), ExitCode::data, file_->path.string(), ": cannot read");
  if (got < bytes) at_end_ = true;
  return got;
}

// Looks at the whole file before any of it goes into the corpus. Small files are kept in rest_ and not read again.
bool TaskReader::is_text() {
  TextChecker checker;
  const std::size_t block = std::min(kScanBytes, task_bytes_);
  read_more(rest_, block);
  bool good = checker.feed(rest_);
  if (good && !at_end_) {
    std::string more;
    while (good && !at_end_) {
      more.clear();
      read_more(more, block);
      good = checker.feed(more);
    }
    stream_.clear();
    stream_.seekg(static_cast<std::streamoff>(rest_.size()));
    if (checker.finish()) at_end_ = false;
  }
  if (checker.finish()) return true;
  if (file_->named) {
    log_warning(concat(file_->path.string(), ": skipped: not UTF-8 text, wrong from byte ", checker.good_bytes(), " on"));
  }
  return false;
}

void TaskReader::read_text(Task& task) {
  const std::size_t begin = task.bytes.size();
  task.bytes += rest_;
  rest_.clear();
  std::size_t wanted = std::max(task_bytes_, begin + 1);
  std::size_t end = begin;
  while (end == begin) {
    while (!at_end_ && task.bytes.size() < wanted) read_more(task.bytes, std::max(wanted - task.bytes.size(), std::size_t{1}));
    if (at_end_) {
      end = task.bytes.size();
      break;
    }
    const std::string_view piece = std::string_view(task.bytes).substr(begin);
    end = begin + tokenizer_.cut(piece);
    demand(end > begin || piece.size() < max_piece_, ExitCode::data, file_->path.string(), ": ", piece.size(),
           " bytes without a place where tokenizer ", tokenizer_.name(), " may be cut");
    wanted += piece.size();
  }
  const bool last = at_end_ && end == task.bytes.size();
  task.segments.push_back({begin, end, last, 0});
  rest_.assign(task.bytes, end, std::string::npos);
  task.bytes.resize(end);
  task.bytes_passed += static_cast<std::int64_t>(end - begin);
  if (last) {
    ++task.files;
    file_.reset();
  }
}

void TaskReader::read_jsonl(Task& task) {
  task.file = file_->path.string();
  task.bytes = std::move(rest_);
  rest_.clear();
  std::size_t wanted = task_bytes_;
  std::size_t end = 0;  // of the last whole line
  while (end == 0) {
    while (!at_end_ && task.bytes.size() < wanted) read_more(task.bytes, wanted - task.bytes.size());
    const std::size_t newline = task.bytes.rfind('\n');
    end = at_end_ ? task.bytes.size() : newline == std::string::npos ? 0 : newline + 1;
    if (at_end_) break;
    demand(end > 0 || task.bytes.size() < max_piece_, ExitCode::data, task.file, ":", line_ + 1, ": a line of more than ",
           max_piece_, " bytes");
    wanted += task.bytes.size();
  }
  rest_.assign(task.bytes, end, std::string::npos);
  task.bytes.resize(end);
  for (std::size_t begin = 0; begin < end;) {
    const std::size_t newline = task.bytes.find('\n', begin);
    const std::size_t stop = newline == std::string::npos ? end : newline;
    ++line_;
    if (!is_blank(std::string_view(task.bytes).substr(begin, stop - begin))) task.segments.push_back({begin, stop, true, line_});
    begin = stop + 1;
  }
  task.bytes_passed += static_cast<std::int64_t>(end);
  if (at_end_ && rest_.empty()) {
    ++task.files;
    file_.reset();
  }
}

}  // namespace octet::data
