#include "octet/data/task_reader.h"

#include <algorithm>

#include "octet/base/checksum.h"
#include "octet/base/log.h"
#include "octet/base/require.h"
#include "octet/base/system_call.h"
#include "octet/data/jsonl.h"

namespace octet::data {
namespace {

constexpr std::size_t kScanBytes = 1 << 18;

std::int64_t sum_with(std::int64_t before, const InputFiles::File& file) {
  RunningChecksum sum;
  sum.update(concat(before, '\0', file.name(), '\0', file.bytes));
  return static_cast<std::int64_t>(sum.value() >> 8);
}

}  // namespace

bool leads_to(InputFiles files, const InputPosition& position) {
  std::int64_t sum = 0;
  for (std::int64_t i = 0; i < position.files; ++i) {
    const auto file = files.next();
    if (!file) return false;
    sum = sum_with(sum, *file);
  }
  if (sum != position.files_sum) return false;
  if (position.bytes == 0) return true;
  const auto open = files.next();
  return open && sum_with(sum, *open) == position.open_sum;
}

TaskReader::TaskReader(InputFiles files, const Tokenizer& tokenizer, const Options& options)
    : files_(std::move(files)), tokenizer_(tokenizer), options_(options) {
  go_to(options.from);
}

// Skips everything before `position` without checking or counting it again.
void TaskReader::go_to(const InputPosition& position) {
  while (position_.files < position.files) {
    file_ = files_.next();
    demand(file_.has_value(), ExitCode::data, "data prepare: the inputs have fewer files than before");
    pass();
  }
  if (position.bytes == 0) return;
  file_ = files_.next();
  demand(file_.has_value(), ExitCode::data, "data prepare: the inputs have fewer files than before");
  open();
  skip(position.bytes);
  position_ = position;
}

bool TaskReader::next(Task& task) {
  const InputPosition before = position_;
  // A task also ends after many skipped bytes, so that progress is reported in a folder of binary files.
  const auto full = [&] {
    return task.bytes.size() >= options_.task_bytes || task.bytes_passed >= static_cast<std::int64_t>(64 * options_.task_bytes);
  };
  while (!full()) {
    if (!file_ && !open_next(task)) break;
    if (!file_) continue;
    const InputFormat format = input_format(file_->path, options_.format);
    const bool mixed = !task.segments.empty() && (task.format != format || format != InputFormat::text);
    if (mixed) break;
    task.format = format;
    if (format == InputFormat::text) {
      read_text(task);
    } else if (format == InputFormat::jsonl) {
      read_jsonl(task);
    } else if (format == InputFormat::parquet) {
      read_parquet(task);
    } else {
      read_tokens(task);
    }
  }
  if (position_.bytes > 0) position_.open_sum = sum_with(position_.files_sum, *file_);
  task.end = position_;
  return position_.files > before.files || position_.bytes > before.bytes;
}

// Opens the next file, or skips it if it cannot be read; no file is open then. Returns false at the end of the inputs.
bool TaskReader::open_next(Task& task) {
  file_ = files_.next();
  if (!file_) return false;
  open();
  const std::string why = unreadable_kind(file_->path);
  if (!why.empty()) log_warning(concat(file_->name(), ": skipped: ", why));
  const bool checked = !file_->is_standard_input() && input_format(file_->path, options_.format) == InputFormat::text;
  if (!why.empty() || (checked && !is_text())) {
    ++task.skipped_files;
    task.bytes_passed += file_->bytes;
    task.skipped_bytes += file_->bytes;
    pass();
    return true;
  }
  demand(options_.values != ParquetFile::Values::messages || input_format(file_->path, options_.format) != InputFormat::text,
         ExitCode::data, file_->name(), ": a text, but conversations are read from JSONL and Parquet; give --input without it");
  return true;
}

void TaskReader::pass() {
  position_ = {.files = position_.files + 1, .files_sum = sum_with(position_.files_sum, *file_)};
  file_.reset();
}

void TaskReader::open() {
  source_.reset();
  parquet_.reset();
  if (input_format(file_->path, options_.format) == InputFormat::parquet) {
    parquet_ = std::make_unique<ParquetFile>(file_->path, options_.field, options_.values);
  } else {
    open_bytes();
  }
  at_end_ = false;
  rest_.clear();
  position_.bytes = position_.lines = position_.open_bytes = 0;
  stream_checker_ = {};
}

void TaskReader::open_bytes() {
  try {
    source_ = open_source(file_->path, options_.stop);
    if (holds_tokens(options_.format)) tokens_ = open_tokens(*source_, options_.format);
  } catch (const Error& error) {
    fail_again(error, concat(file_->name(), ": ", error.what()));
  }
}

// Skips bytes of the open file, or rows of a Parquet file.
void TaskReader::skip(std::int64_t bytes) {
  if (parquet_) return parquet_->skip(bytes);
  std::string passed;
  for (std::int64_t left = bytes; left > 0 && !at_end_; left -= static_cast<std::int64_t>(passed.size())) {
    passed.clear();
    read_more(passed, static_cast<std::size_t>(std::min<std::int64_t>(left, kScanBytes)));
  }
}

std::size_t TaskReader::read_more(std::string& to, std::size_t bytes) {
  const std::size_t before = to.size();
  to.resize(before + bytes);
  std::size_t got = 0;
  try {
    got = source_->read(to.data() + before, bytes);
  } catch (const Error& error) {
    demand(error.code() != ExitCode::interrupted, error.code(), "data prepare: interrupted while reading ", file_->name(),
           "; nothing was written");
    if (input_format(file_->path, options_.format) != InputFormat::jsonl) fail_again(error, concat(file_->name(), ": ", error.what()));
    const auto lines = std::count(to.begin(), to.begin() + static_cast<std::ptrdiff_t>(before), '\n');
    fail_again(error, concat(file_->name(), ":", position_.lines + lines + 1, ": ", error.what(), " here or after it"));
  }
  to.resize(before + got);
  if (got < bytes) at_end_ = true;
  if (file_->is_standard_input() && input_format(file_->path, options_.format) == InputFormat::text) {
    const std::string_view piece = std::string_view(to).substr(before);
    const bool parquet = stream_checker_.good_bytes() == 0 && piece.starts_with("PAR1");
    const bool good = stream_checker_.feed(piece);
    demand(good && (!at_end_ || stream_checker_.finish()), ExitCode::data, file_->name(), ": not UTF-8 text, wrong from byte ",
           stream_checker_.good_bytes(), " on", parquet ? "; Parquet is read only from files" : "");
  }
  return got;
}

// Checks the whole file before any of it goes into the corpus. A small file stays in rest_; a larger file is opened and read again.
bool TaskReader::is_text() {
  TextChecker checker;
  const std::size_t block = std::min(kScanBytes, options_.task_bytes);
  read_more(rest_, block);
  bool good = checker.feed(rest_);
  if (good && !at_end_) {
    std::string more;
    while (good && !at_end_) {
      more.clear();
      read_more(more, block);
      good = checker.feed(more);
    }
    if (checker.finish()) open();
  }
  if (checker.finish()) return true;
  if (file_->named) {
    const bool tokens = options_.format == InputFormat::automatic && lower_extension(unpacked_name(file_->path)) == ".bin";
    log_warning(concat(file_->name(), ": skipped: not UTF-8 text, wrong from byte ", checker.good_bytes(), " on",
                       tokens ? "; --format nanogpt takes it as tokens of 16 bits" : ""));
  }
  return false;
}

// Bytes of the open file on disk that have been read. For Parquet this is an estimate: the fraction of the rows times the file's size.
std::int64_t TaskReader::consumed() const {
  if (!parquet_) return source_->consumed();
  if (parquet_->row() == parquet_->rows()) return file_->bytes;
  return static_cast<std::int64_t>(static_cast<double>(file_->bytes) * static_cast<double>(parquet_->row()) /
                                   static_cast<double>(parquet_->rows()));
}

// Advances the position by `bytes` unpacked bytes, or rows, that have just been put into the task. `last`: the file ends here.
void TaskReader::end_piece(Task& task, std::size_t bytes, bool last) {
  position_.bytes += static_cast<std::int64_t>(bytes);
  task.bytes_passed += consumed() - position_.open_bytes;
  position_.open_bytes = consumed();
  if (!last) return;
  ++task.files;
  pass();
}

void TaskReader::read_text(Task& task) {
  const std::size_t begin = task.bytes.size();
  task.bytes += rest_;
  rest_.clear();
  std::size_t wanted = std::max(options_.task_bytes, begin + 1);
  std::size_t end = begin;
  while (end == begin) {
    while (!at_end_ && task.bytes.size() < wanted) read_more(task.bytes, std::max(wanted - task.bytes.size(), std::size_t{1}));
    if (at_end_) {
      end = task.bytes.size();
      break;
    }
    const std::string_view piece = std::string_view(task.bytes).substr(begin);
    end = begin + tokenizer_.cut(piece);
    demand(end > begin || piece.size() < options_.max_piece, ExitCode::data, file_->name(), ": ", piece.size(),
           " bytes without a place where tokenizer ", tokenizer_.name(), " may be cut");
    wanted += piece.size();
  }
  const bool last = at_end_ && end == task.bytes.size();
  task.segments.push_back({begin, end, last, 0});
  rest_.assign(task.bytes, end, std::string::npos);
  task.bytes.resize(end);
  end_piece(task, end - begin, last);
}

void TaskReader::read_jsonl(Task& task) {
  task.file = file_->name();
  task.bytes = std::move(rest_);
  rest_.clear();
  std::size_t wanted = options_.task_bytes;
  std::size_t end = 0;  // end of the last whole line
  while (end == 0) {
    while (!at_end_ && task.bytes.size() < wanted) read_more(task.bytes, wanted - task.bytes.size());
    const std::size_t newline = task.bytes.rfind('\n');
    end = at_end_ ? task.bytes.size() : newline == std::string::npos ? 0 : newline + 1;
    if (at_end_) break;
    demand(end > 0 || task.bytes.size() < options_.max_piece, ExitCode::data, task.file, ":", position_.lines + 1,
           ": a line of more than ", options_.max_piece, " bytes");
    wanted += task.bytes.size();
  }
  rest_.assign(task.bytes, end, std::string::npos);
  task.bytes.resize(end);
  for (std::size_t begin = 0; begin < end;) {
    const std::size_t newline = task.bytes.find('\n', begin);
    const std::size_t stop = newline == std::string::npos ? end : newline;
    const std::int64_t line = ++position_.lines;
    if (!is_blank(std::string_view(task.bytes).substr(begin, stop - begin))) task.segments.push_back({begin, stop, true, line});
    begin = stop + 1;
  }
  end_piece(task, end, at_end_ && rest_.empty());
}

void TaskReader::read_parquet(Task& task) {
  constexpr std::size_t kMostRows = 1 << 16;  // bounds the segments of a task when texts are short or empty
  task.file = file_->name();
  std::size_t rows = 0;
  for (; rows < kMostRows && task.bytes.size() < options_.task_bytes && parquet_->row() < parquet_->rows(); ++rows) {
    const std::string_view text = *parquet_->next();
    demand(text.size() <= options_.max_piece, ExitCode::data, task.file, ":", parquet_->row(), ": a text of more than ",
           options_.max_piece, " bytes");
    const std::size_t begin = task.bytes.size();
    task.bytes += text;
    task.segments.push_back({begin, task.bytes.size(), true, parquet_->row()});
  }
  end_piece(task, rows, parquet_->row() == parquet_->rows());
}

void TaskReader::read_tokens(Task& task) {
  task.file = file_->name();
  task.tokens = tokens_;
  task.bytes = std::move(rest_);
  rest_.clear();
  std::size_t wanted = options_.task_bytes;
  std::size_t end = 0;  // end of the last whole document
  while (end == 0) {
    while (!at_end_ && task.bytes.size() < wanted) read_more(task.bytes, wanted - task.bytes.size());
    end = at_end_ ? task.bytes.size() : tokens_.whole_documents(task.bytes);
    if (at_end_) break;
    demand(end > 0 || task.bytes.size() < options_.max_piece, ExitCode::data, task.file, ": a document of more than ",
           options_.max_piece, " bytes");
    wanted += task.bytes.size();
  }
  rest_.assign(task.bytes, end, std::string::npos);
  task.bytes.resize(end);
  const std::int64_t first = position_.bytes / tokens_.width;
  if (end > 0) task.segments.push_back({0, end, true, first});
  if (at_end_ && rest_.empty()) {
    const std::int64_t bytes = position_.bytes + static_cast<std::int64_t>(end), tokens = bytes / tokens_.width;
    demand(bytes % tokens_.width == 0, ExitCode::data, task.file, ": ", bytes, " bytes are not a whole number of tokens of ",
           tokens_.width, " bytes");
    demand(!tokens_.tokens || *tokens_.tokens == tokens, ExitCode::data, task.file, ": its header promises ",
           tokens_.tokens.value_or(0), " tokens, it holds ", tokens);
  }
  end_piece(task, end, at_end_ && rest_.empty());
}

}  // namespace octet::data
