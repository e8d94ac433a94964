#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <utility>

#include "octet/app/commands.h"
#include "octet/app/fetched.h"
#include "octet/app/standard_streams.h"
#include "octet/base/directory.h"
#include "octet/base/json.h"
#include "octet/base/require.h"
#include "octet/base/start_thread.h"
#include "octet/data/input_files.h"
#include "octet/data/inspect.h"
#include "octet/data/prepare.h"
#include "octet/data/token_file.h"

namespace octet::app {
namespace {

std::atomic<bool> stop_asked{false};
static_assert(std::atomic<bool>::is_always_lock_free, "set from a signal handler");

void ask_to_stop(int signal) {
  stop_asked.store(true);
  std::signal(signal, SIG_DFL);  // the second one ends the program at once
}

data::InputFormat format_of(const std::string& name) {
  if (name == "text") return data::InputFormat::text;
  if (name == "llmc") return data::InputFormat::llmc;
  if (name == "nanogpt") return data::InputFormat::nanogpt;
  return name == "jsonl" ? data::InputFormat::jsonl : data::InputFormat::automatic;
}

data::Duplicates duplicates_of(const std::string& name) {
  if (name == "drop") return data::Duplicates::drop;
  return name == "count" ? data::Duplicates::count : data::Duplicates::ignore;
}

data::TrainOn train_on_of(const std::string& name) {
  for (const data::TrainOn train_on : {data::TrainOn::all, data::TrainOn::last}) {
    if (name == data::train_on_name(train_on)) return train_on;
  }
  return data::TrainOn::assistant;
}

// Whether one of the inputs consists of records.
bool has_fields(const data::PrepareOptions& options) {
  data::InputFiles files(options.inputs, data::CorpusPaths(options.output));
  while (const auto file = files.next()) {
    const data::InputFormat format = data::input_format(file->path, options.format);
    if (format == data::InputFormat::jsonl || format == data::InputFormat::parquet) return true;
  }
  return false;
}

}  // namespace

int run_data_prepare(const DataPrepareArgs& args) {
  check_threads("--workers", args.workers);
  demand(!args.chat.empty() || args.max_tokens == 0, ExitCode::config, "--max-tokens ", args.max_tokens, " needs --chat");
  demand(!args.chat.empty() || args.train_on == DataPrepareArgs{}.train_on, ExitCode::config, "--train-on ", args.train_on,
         " needs --chat");
  const std::string prefix = data::CorpusPaths(args.output).prefix.string(), mask = prefix + ".loss.json";
  demand(!prefix.ends_with(".loss"), ExitCode::config, "--output ", prefix,
         ": the corpus would have the name of another one's loss mask");
  demand(!path_exists(mask), ExitCode::config, "--output ", prefix, ": ", mask,
         " is there, so a corpus has the name of this one's loss mask; move it or choose another name");
  // A signal ends the copies at once. The next command continues them.
  std::vector<std::filesystem::path> inputs;
  for (const std::filesystem::path& input : args.inputs) {
    for (std::filesystem::path& path : train::fetch_texts(input, show_copy)) inputs.push_back(std::move(path));
  }
  const std::string tokenizer_path =
      args.tokenizer.empty() ? "" : fetched_folder(args.tokenizer, train::Fetch::architecture).string();
  std::signal(SIGINT, ask_to_stop);
  std::signal(SIGTERM, ask_to_stop);
  if (std::signal(SIGHUP, ask_to_stop) == SIG_IGN) std::signal(SIGHUP, SIG_IGN);  // nohup
  data::PrepareOptions options{.inputs = inputs,
                               .format = format_of(args.format),
                               .output = args.output,
                               .field = args.field.empty() && args.chat.empty() ? "text" : args.field,
                               .duplicates = duplicates_of(args.duplicates),
                               .max_output_bytes = args.max_output,
                               .workers = args.workers};
  if (options.format == data::InputFormat::automatic)
    options.format = data::format_of_tokens({inputs, data::CorpusPaths(args.output)});
  demand(args.field.empty() || has_fields(options), ExitCode::config, "--field ", args.field,
         ": no input is JSONL or Parquet; leave it out, or give --format jsonl");
  options.stop = &stop_asked;
  data::ConsoleProgress console;
  if (!args.json) options.progress = [&](const data::PrepareProgress& progress) { console(progress); };
  const data::DocumentEnd end = args.append_eod ? data::DocumentEnd::token : data::DocumentEnd::none;
  const bool unknown = args.tokenizer.empty() && data::holds_tokens(options.format);
  const auto tokenizer = unknown ? nullptr : data::make_tokenizer(tokenizer_path.empty() ? "byte" : tokenizer_path, end);
  if (!args.chat.empty()) {
    demand(tokenizer != nullptr, ExitCode::config, "--chat ", args.chat, ": the inputs are tokens, not conversations");
    options.chat = data::chat_format(args.chat, train_on_of(args.train_on), *tokenizer);
    options.max_tokens = args.max_tokens;
  }
  const data::PrepareSummary summary = unknown ? data::prepare_tokens(options) : data::prepare(options, *tokenizer);
  if (args.json) {
    Json object = {{"output", args.output.string()},         {"files", summary.files},
                   {"skipped_files", summary.skipped_files}, {"empty_documents", summary.empty_documents},
                   {"duplicates", summary.duplicates},       {"documents", summary.corpus.documents},
                   {"tokens", summary.corpus.tokens},        {"input_bytes", summary.input_bytes},
                   {"elapsed_s", summary.elapsed_s}};
    if (summary.corpus.loss) object["trained_tokens"] = summary.corpus.loss->trained_tokens;
    if (const auto& chat = summary.corpus.chat) {
      object["cut_tokens"] = chat->cut_tokens;
      object["no_answer"] = chat->no_answer;
      object["answer_cut"] = chat->answer_cut;
      object["dropped_fields"] = chat->dropped_fields;
    }
    std::puts(json_text(object).c_str());
  } else {
    std::fputs(data::to_text(summary).c_str(), stdout);
  }
  return 0;
}

int run_data_inspect(const DataInspectArgs& args) {
  data::InspectOptions options{.samples = args.samples, .pack_seq_len = args.pack};
  if (args.tokens) {
    options.show = data::InspectOptions::Show::tokens;
    options.sample_tokens = 8192;
  }
  const data::CorpusReport report = data::inspect(train::fetch_corpus(args.prefix, show_copy), options);
  if (args.json) {
    std::fputs((data::to_json(report) + "\n").c_str(), stdout);
  } else if (wants_colours(STDOUT_FILENO)) {
    print_coloured(data::to_text(report, data::Marks::colour));
  } else {
    std::fputs(data::to_text(report).c_str(), stdout);
  }
  return 0;
}

}  // namespace octet::app
