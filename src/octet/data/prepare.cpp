#include "octet/data/prepare.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "octet/base/bottom_line.h"
#include "octet/base/clock.h"
#include "octet/base/log.h"
#include "octet/base/require.h"
#include "octet/base/system_call.h"
#include "octet/base/threads.h"
#include "octet/data/corpus_writer.h"
#include "octet/data/jsonl.h"
#include "octet/data/ordered_pipeline.h"
#include "octet/data/parquet/parquet_file.h"
#include "octet/data/prepare_journal.h"
#include "octet/data/task_reader.h"
#include "octet/data/tokenizer/utf8.h"
#include "octet/telemetry/format.h"

namespace octet::data {
using telemetry::format_bytes, telemetry::format_count, telemetry::format_duration;
namespace {

// The result of a worker: the tokens of a task.
struct Encoded {
  struct Piece {
    std::size_t tokens;
    bool ends_document;
    std::int64_t cut_tokens = 0;  // as in ChatInfo
  };
  std::vector<std::int32_t> ids;
  std::vector<std::uint8_t> trained;  // for each id, with PrepareOptions::chat
  std::vector<Piece> pieces;
  std::int64_t no_answer = 0, answer_cut = 0, dropped_fields = 0;  // as in ChatInfo
  std::int64_t files = 0, skipped_files = 0, bytes_passed = 0, skipped_bytes = 0;
  InputPosition end;

  // `in_document` says whether the first piece continues a document.
  CorpusWriter::More more(bool in_document) const {
    CorpusWriter::More result{.tokens = static_cast<std::int64_t>(ids.size())};
    for (const Piece& piece : pieces) {
      if (!in_document && piece.tokens > 0) ++result.begun;
      in_document = in_document || piece.tokens > 0;
      if (in_document && piece.ends_document) ++result.ended;
      in_document = in_document && !piece.ends_document;
    }
    return result;
  }
};

// The tokenizer of complete documents, namely those of token files and conversations. It adds no prefix and no end-of-document
// token.
class GivenTokens final : public Tokenizer {
 public:
  explicit GivenTokens(std::int64_t limit) : limit_(static_cast<std::int32_t>(limit)) {}
  explicit GivenTokens(const Tokenizer& maker) : name_(maker.name()), hash_(maker.hash()), limit_(maker.vocab_size()) {}
  std::string name() const override { return name_; }
  std::string hash() const override { return hash_; }
  std::int32_t vocab_size() const override { return limit_; }
  std::optional<std::int32_t> end_of_document() const override { return std::nullopt; }
  void encode(std::string_view, std::vector<std::int32_t>&) const override {
    fail(ExitCode::internal, "tokens need no encoding");
  }
  std::vector<std::size_t> encode_counting(std::string_view, std::span<const std::size_t>,
                                           std::vector<std::int32_t>&) const override {
    fail(ExitCode::internal, "tokens need no encoding");
  }
  void decode(std::span<const std::int32_t>, std::string&) const override { fail(ExitCode::internal, "tokens stay as they are"); }
  std::size_t cut(std::string_view) const override { return 0; }

 private:
  std::string name_, hash_;
  std::int32_t limit_;
};

void read_tokens(const Task& task, const Tokenizer& tokenizer, Encoded& encoded) {
  std::vector<std::size_t> documents;
  for (const Segment& segment : task.segments) {
    read_documents(task.tokens, std::string_view(task.bytes).substr(segment.begin, segment.end - segment.begin),
                   tokenizer.vocab_size(), task.file, segment.line, encoded.ids, documents);
  }
  for (const std::size_t tokens : documents) encoded.pieces.push_back({tokens, true});
}

// Encodes one conversation and returns the number of its tokens that were cut off. Adds nothing for a conversation that has no
// token to train on.
std::int64_t encode_conversation(std::string_view json, const PrepareOptions& options, const Tokenizer& tokenizer,
                                 const Task& task, std::int64_t line, Encoded& encoded) {
  const Conversation conversation = read_conversation(json, options.field, task.file, line);
  for (const ChatMessage& message : conversation) encoded.dropped_fields += message.dropped;
  const std::size_t before = encoded.ids.size();
  try {
    encode_chat(conversation, *options.chat, tokenizer, encoded.ids, encoded.trained);
  } catch (const Error& error) {
    fail(error.code(), task.file, ":", line, ": ", error.what());
  }
  const auto trains = [&] {
    return std::find(encoded.trained.begin() + static_cast<std::ptrdiff_t>(before), encoded.trained.end(), 1) !=
           encoded.trained.end();
  };
  bool leave_out = !trains();
  if (leave_out) ++encoded.no_answer;
  const auto most = before + static_cast<std::size_t>(options.max_tokens);
  std::size_t cut_tokens = 0;
  if (!leave_out && options.max_tokens > 0 && encoded.ids.size() > most) {
    cut_tokens = encoded.ids.size() - most;
    encoded.ids.resize(most);
    encoded.trained.resize(most);
    leave_out = !trains();
    if (leave_out) ++encoded.answer_cut;
  }
  if (leave_out) {
    encoded.ids.resize(before);
    encoded.trained.resize(before);
    return 0;
  }
  return static_cast<std::int64_t>(cut_tokens);
}

Encoded encode(const Task& task, const Tokenizer& tokenizer, const PrepareOptions& options) {
  const std::string& field = options.field;
  Encoded encoded;
  encoded.files = task.files;
  encoded.skipped_files = task.skipped_files;
  encoded.bytes_passed = task.bytes_passed;
  encoded.skipped_bytes = task.skipped_bytes;
  encoded.end = task.end;
  if (holds_tokens(task.format)) {
    read_tokens(task, tokenizer, encoded);
    return encoded;
  }
  encoded.pieces.reserve(task.segments.size());
  for (const Segment& segment : task.segments) {
    const std::size_t before = encoded.ids.size();
    std::int64_t cut_tokens = 0;
    const std::string_view bytes = std::string_view(task.bytes).substr(segment.begin, segment.end - segment.begin);
    if (options.chat) {
      cut_tokens = encode_conversation(bytes, options, tokenizer, task, segment.line, encoded);
    } else if (task.format == InputFormat::jsonl) {
      tokenizer.encode(jsonl_text(bytes, field, task.file, segment.line), encoded.ids);
    } else if (task.format == InputFormat::parquet) {
      const std::size_t good = valid_utf8(bytes);
      demand(good == bytes.size(), ExitCode::data, task.file, ":", segment.line, ": column \"", field,
             "\" is not UTF-8, wrong from byte ", good, " on");
      tokenizer.encode(bytes, encoded.ids);
    } else {
      tokenizer.encode(bytes, encoded.ids);
    }
    encoded.pieces.push_back({encoded.ids.size() - before, segment.ends_document, cut_tokens});
  }
  return encoded;
}

// Throws, before any work, if the Parquet plugin is missing: without it the corpus would lack the Parquet files.
void demand_parquet(const std::string& file) {
  try {
    parquet_plugin();
  } catch (const Error& error) {
    fail(error.code(), file, ": ", error.what());
  }
}

std::string names_of(const std::vector<std::filesystem::path>& inputs) {
  std::string names = inputs.front().string();
  if (inputs.size() > 1) names += concat(" and ", inputs.size() - 1, " more");
  return names;
}

// `writes` is what the writer knows of the tokenizer: which tokens it puts before and after a document.
PrepareSummary run(const PrepareOptions& options, const Tokenizer& tokenizer, const Tokenizer& writes) {
  demand(!options.inputs.empty(), ExitCode::config, "data prepare: no input given");
  demand(options.workers >= 0, ExitCode::config, "data prepare: workers must not be negative, got ", options.workers);
  const auto start = Clock::now();
  const InputFiles files(options.inputs, CorpusPaths(options.output));
  PrepareProgress progress;
  InputFiles counted = files;
  while (const auto file = counted.next()) {
    progress.bytes_total += file->bytes;
    progress.endless = progress.endless || file->is_standard_input();
    const InputFormat format = input_format(file->path, options.format);
    if (format == InputFormat::parquet) demand_parquet(file->name());
    demand(!options.chat || !file->named || format == InputFormat::jsonl || format == InputFormat::parquet, ExitCode::config,
           file->name(),
           ": not a file of conversations; --chat reads JSONL and Parquet (--format jsonl if the name does not say so; "
           "`jq -c '.[]'` makes JSONL of a JSON array)");
  }

  if (const auto& links = counted.linked_folders(); !links.empty()) {
    log_warning(concat(links.front().string(), links.size() > 1 ? concat(" and ", links.size() - 1, " more") : "",
                       ": links to folders are left out; give a folder with --input to read it"));
  }

  const std::string job = job_of(options, tokenizer, files);
  CorpusParts parts(options.output);
  auto earlier = read_journal(parts, job);
  if (earlier && !leads_to(files, earlier->position)) {
    log_info(concat(options.output.string(), ": the input files have changed since the interrupted run; starting over"));
    earlier.reset();
  }
  CorpusWriter writer(std::move(parts), writes,
                      {.duplicates = options.duplicates,
                       .loss_mask = options.chat ? CorpusWriter::LossMask::written : CorpusWriter::LossMask::none,
                       .resume = earlier ? &earlier->writer : nullptr});
  PrepareJournal journal{.job = job};
  if (writer.resumed()) {
    journal = *earlier;
    progress.bytes_done = progress.bytes_before = journal.bytes_done;
    log_info(concat("data prepare: continuing after ", format_count(writer.documents(), "document"), " of an interrupted run"));
  } else if (earlier) {
    log_warning(concat(options.output.string(), ": the part files of the interrupted run are damaged; starting over"));
  }
  bool saved = writer.resumed();  // the journal describes the part files
  // Saves the progress up to the last whole document. If a document is incomplete, it is the open text file, and the next run
  // reads this file again from its beginning.
  const auto save = [&] {
    PrepareJournal now = journal;
    now.writer = writer.flush();
    now.bytes_done = progress.bytes_done;
    if (writer.in_document()) {
      now.input_bytes -= journal.position.open_bytes;
      now.bytes_done -= journal.position.open_bytes;
      now.position = {.files = journal.position.files, .files_sum = journal.position.files_sum};
    }
    write_journal(writer.parts(), now);
    saved = true;
  };

  OutputWatch watch({.output = options.output, .max_bytes = options.max_output_bytes, .space = options.space});
  // Ends the preparation so that the same command can go on, if there is something to go on from.
  const auto end_early = [&](const OutputWatch::Stop& stop) {
    const bool goes_on = !job.empty() && writer.documents() > 0;
    if (goes_on) {
      save();
      writer.keep();
    }
    const bool limited = stop.code == ExitCode::does_not_fit;
    fail(stop.code, options.output.string(), ": ", stop.why, "; stopped after ", format_count(writer.documents(), "document"),
         ". ",
         !goes_on  ? "Nothing was written"
         : limited ? "The same command with a larger --max-output continues from there"
                   : "Make room and run the same command: it continues from there");
  };

  // If a system call fails, the part files stay: the disk or the file server may work again.
  const auto keep_parts = [&](const auto& act) {
    try {
      return act();
    } catch (const SystemError&) {
      if (saved) writer.keep();
      throw;
    }
  };
  TaskReader reader = keep_parts([&] {
    return TaskReader(files, tokenizer,
                      {.format = options.format,
                       .field = options.chat && options.field.empty() ? kChatColumn : options.field,
                       .values = options.chat ? ParquetFile::Values::messages : ParquetFile::Values::text,
                       .from = journal.position,
                       .stop = options.stop});
  });
  double reported_s = 0, saved_s = 0;
  const auto write = [&](Encoded& encoded) {
    std::span<const std::int32_t> ids(encoded.ids);
    std::span<const std::uint8_t> trained(encoded.trained);
    // How many documents of a batch are duplicates is known only afterwards.
    const std::int64_t bytes =
        options.duplicates == Duplicates::drop ? writer.output_bytes() : writer.output_bytes(encoded.more(writer.in_document()));
    if (const auto stop = watch.look_ahead(bytes)) end_early(*stop);
    for (const Encoded::Piece& piece : encoded.pieces) {
      writer.append(ids.first(piece.tokens), options.chat ? trained.first(piece.tokens) : trained);
      ids = ids.subspan(piece.tokens);
      if (options.chat) trained = trained.subspan(piece.tokens);
      if (!piece.ends_document) continue;
      const CorpusWriter::Ended ended = writer.end_document();
      if (ended == CorpusWriter::Ended::empty && !options.chat) ++journal.empty_documents;
      const bool dropped = ended == CorpusWriter::Ended::duplicate && options.duplicates == Duplicates::drop;
      if (!dropped) journal.cut_tokens += piece.cut_tokens;
    }
    journal.no_answer += encoded.no_answer;
    journal.answer_cut += encoded.answer_cut;
    journal.dropped_fields += encoded.dropped_fields;
    journal.position = encoded.end;
    journal.files += encoded.files;
    journal.skipped_files += encoded.skipped_files;
    journal.input_bytes += encoded.bytes_passed - encoded.skipped_bytes;
    progress.bytes_done += encoded.bytes_passed;
    progress.documents = writer.documents();
    progress.tokens = writer.tokens();
    progress.output_bytes = writer.output_bytes();
    progress.elapsed_s = seconds_since(start);
    const std::int64_t total = progress.endless ? 0 : progress.bytes_total;
    if (const auto stop = watch.look(progress.output_bytes, writer.unwritten_bytes(), progress.bytes_done, total))
      end_early(*stop);
    if (options.progress && progress.elapsed_s >= reported_s + 1) {
      reported_s = progress.elapsed_s;
      options.progress(progress);
    }
    if (!job.empty() && progress.elapsed_s >= saved_s + options.journal_interval_s) {
      saved_s = progress.elapsed_s;
      save();
    }
    if (options.stop == nullptr || !options.stop->load()) return;
    demand(!job.empty(), ExitCode::interrupted, "data prepare: interrupted; nothing was written to ", options.output.string());
    save();
    writer.keep();
    fail(ExitCode::preempted, "data prepare: interrupted after ", format_count(writer.documents(), "document"),
         "; the same command continues from there");
  };
  const int workers = options.workers > 0 ? options.workers : available_cores();
  OrderedPipeline<Task, Encoded> pipeline({.read = [&](Task& task) { return reader.next(task); },
                                           .work = [&](Task& task) { return encode(task, tokenizer, options); },
                                           .write = write},
                                          workers, 2 * workers + 2);
  keep_parts([&] { pipeline.run(); });

  demand(writer.documents() > 0 || !options.chat, ExitCode::data, names_of(options.inputs),
         ": no conversation to train on here: ", journal.no_answer, " without an answer to train on, ", journal.answer_cut,
         " whose answers --max-tokens cuts off");
  demand(writer.documents() > 0, ExitCode::data, names_of(options.inputs),
         ": no documents here: ", format_count(journal.files, "text file"), ", ",
         format_count(journal.empty_documents, "empty document"), ", ", format_count(journal.skipped_files, "file"),
         " not in UTF-8");
  std::optional<ChatInfo> chat;
  if (options.chat) {
    chat = ChatInfo{.form = std::string(options.chat->form->name),
                    .train_on = std::string(train_on_name(options.chat->train_on)),
                    .cut_tokens = journal.cut_tokens,
                    .no_answer = journal.no_answer,
                    .answer_cut = journal.answer_cut,
                    .duplicates = options.duplicates == Duplicates::drop ? writer.duplicates() : 0,
                    .dropped_fields = journal.dropped_fields};
  }
  PrepareSummary summary{.corpus = writer.finish(command_of(options, writes, writer.flush()), chat),
                         .files = journal.files,
                         .skipped_files = journal.skipped_files,
                         .empty_documents = journal.empty_documents,
                         .duplicates = writer.duplicates(),
                         .duplicates_were = options.duplicates,
                         .input_bytes = journal.input_bytes};
  progress.documents = summary.corpus.documents;
  progress.tokens = summary.corpus.tokens;
  summary.elapsed_s = progress.elapsed_s = seconds_since(start);
  progress.last = true;
  if (options.progress) options.progress(progress);
  return summary;
}

}  // namespace

PrepareSummary prepare_tokens(const PrepareOptions& options) {
  require(holds_tokens(options.format), "data prepare: no format of tokens");
  demand(!options.inputs.empty(), ExitCode::config, "data prepare: no input given");
  InputFiles files(options.inputs, CorpusPaths(options.output));
  std::int64_t limit = 1;
  while (const auto file = files.next()) {
    demand(!file->is_standard_input(), ExitCode::config, "data prepare: tokens cannot come from standard input");
    limit = std::max(limit, token_file_of(*file, options.format).vocab_limit());
  }
  const GivenTokens given(limit);
  return run(options, given, given);
}

PrepareSummary prepare(const PrepareOptions& options, const Tokenizer& tokenizer) {
  demand(!options.chat || !holds_tokens(options.format), ExitCode::config, "data prepare: --chat reads texts, not tokens");
  const GivenTokens bare(tokenizer);  // a template writes all tokens of a conversation
  if (holds_tokens(options.format)) return run(options, bare, bare);
  return options.chat ? run(options, tokenizer, bare) : run(options, tokenizer, tokenizer);
}

std::string to_text(const PrepareSummary& summary) {
  const CorpusInfo& corpus = summary.corpus;
  std::string text =
      fmt::format("{}, {} (tokenizer {}, vocabulary {}, {}) from {}, {}, in {}\n", format_count(corpus.documents, "document"),
                  format_count(corpus.tokens, "token"), corpus.tokenizer.empty() ? "unknown" : corpus.tokenizer,
                  format_count(corpus.vocab_size), token_type_name(corpus.type), format_count(summary.files, "file"),
                  format_bytes(static_cast<std::uint64_t>(summary.input_bytes)), format_duration(summary.elapsed_s));
  if (corpus.loss) {
    text += fmt::format("{} tokens are trained on, {} are masked\n", format_count(corpus.loss->trained_tokens),
                        format_count(corpus.tokens - corpus.loss->trained_tokens));
  }
  if (corpus.chat) text += to_text(*corpus.chat);
  if (summary.skipped_files > 0) text += fmt::format("skipped {} not in UTF-8\n", format_count(summary.skipped_files, "file"));
  if (summary.empty_documents > 0) text += fmt::format("left out {}\n", format_count(summary.empty_documents, "empty document"));
  if (summary.duplicates > 0) {
    text += fmt::format("{} {} the same as an earlier one{}\n", format_count(summary.duplicates, "document"),
                        summary.duplicates == 1 ? "is" : "are",
                        summary.duplicates_were == Duplicates::drop ? ": dropped" : "; --duplicates drop leaves them out");
  }
  return text;
}

ConsoleProgress::~ConsoleProgress() {
  if (drawn_) show_bottom_line(STDERR_FILENO, "");
}

void ConsoleProgress::operator()(const PrepareProgress& progress) {
  const bool terminal = ::isatty(STDERR_FILENO) == 1;
  const double interval_s = terminal ? 1 : 10;
  if (!progress.last && progress.elapsed_s < next_s_) return;
  if (progress.last && next_s_ == 0) return;  // the run was too short to show any progress
  next_s_ = progress.elapsed_s + interval_s;
  const std::int64_t bytes_now = progress.bytes_done - progress.bytes_before;
  const double rate = static_cast<double>(bytes_now) / std::max(progress.elapsed_s, 1e-9);
  const double left_s = bytes_now > 0 ? static_cast<double>(progress.bytes_total - progress.bytes_done) / rate : -1;
  const double share =
      progress.bytes_total > 0 ? static_cast<double>(progress.bytes_done) / static_cast<double>(progress.bytes_total) : 1;
  std::string line = "prepare";
  if (!progress.endless || progress.last) line += fmt::format(" {:3.0f}%", 100 * (progress.endless ? 1 : share));
  line += fmt::format("  {}  {}/s  {}  {}", format_bytes(static_cast<std::uint64_t>(progress.bytes_done)),
                      format_bytes(static_cast<std::uint64_t>(rate)), format_count(progress.documents, "document"),
                      format_count(progress.tokens, "token"));
  if (!progress.last && progress.output_bytes > 0) {
    const std::int64_t expected =
        progress.endless ? 0 : expected_bytes(progress.output_bytes, progress.bytes_done, progress.bytes_total);
    line += "  corpus " + format_bytes(static_cast<std::uint64_t>(progress.output_bytes));
    if (expected > 0) line += fmt::format(", {} expected", format_bytes(static_cast<std::uint64_t>(expected)));
    if (progress.bytes_done > 0)
      line += fmt::format(" ({} x input)",
                          telemetry::format_significant(
                              static_cast<double>(progress.output_bytes) / static_cast<double>(progress.bytes_done), 3));
  }
  if (progress.last) {
    line += "  done in " + format_duration(progress.elapsed_s);
  } else if (!progress.endless) {
    line += "  eta " + format_duration(left_s);
  }
  if (terminal) show_bottom_line(STDERR_FILENO, progress.last ? "" : line);
  drawn_ = terminal && !progress.last;
  if (!terminal || progress.last) log_info(line);
}

}  // namespace octet::data
