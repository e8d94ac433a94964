#include "octet/data/prepare_journal.h"

#include "octet/base/checksum.h"
#include "octet/base/directory.h"
#include "octet/base/json.h"
#include "octet/base/log.h"
#include "octet/base/require.h"
#include "octet/base/system_call.h"

namespace octet::data {
namespace fs = std::filesystem;
namespace {

// Increase this when the same inputs would give a different corpus.
constexpr int kVersion = 4;

// Calls visit(name, member) for every number of the journal, so that writing and reading share one list.
template <class Journal, class Visit>
void visit_numbers(Journal& j, Visit&& visit) {
  visit("position_files", j.position.files);
  visit("position_bytes", j.position.bytes);
  visit("position_lines", j.position.lines);
  visit("position_open_bytes", j.position.open_bytes);
  visit("position_files_sum", j.position.files_sum);
  visit("position_open_sum", j.position.open_sum);
  visit("documents", j.writer.documents);
  visit("sequences", j.writer.sequences);
  visit("tokens", j.writer.tokens);
  visit("duplicates", j.writer.duplicates);
  visit("seen", j.writer.seen);
  visit("largest_token", j.writer.largest_token);
  visit("files", j.files);
  visit("skipped_files", j.skipped_files);
  visit("empty_documents", j.empty_documents);
  visit("input_bytes", j.input_bytes);
  visit("bytes_done", j.bytes_done);
  visit("cut_tokens", j.cut_tokens);
  visit("no_answer", j.no_answer);
  visit("answer_cut", j.answer_cut);
  visit("dropped_fields", j.dropped_fields);
  visit("trained_tokens", j.writer.trained_tokens);
}

void add(RunningChecksum& sum, const auto& part) { sum.update(concat(part, '\0')); }

// The options that decide the corpus.
void add_options(RunningChecksum& sum, const PrepareOptions& options) {
  add(sum, options.field);
  add(sum, static_cast<int>(options.format));
  add(sum, static_cast<int>(options.duplicates));
  if (!options.chat) return;
  add(sum, options.chat->form->name);
  add(sum, options.chat->tokens.bos);
  add(sum, options.chat->tokens.eos);
  add(sum, train_on_name(options.chat->train_on));
  add(sum, options.chat->system);
  add(sum, options.max_tokens);
}

}  // namespace

std::string command_of(const PrepareOptions& options, const Tokenizer& writes, const WriterState& written) {
  RunningChecksum sum;
  add_options(sum, options);
  add(sum, writes.name());
  add(sum, writes.end_of_document().value_or(-1));
  for (const fs::path& input : options.inputs) {
    add(sum, input.lexically_normal().string());
    if (input != "-") continue;
    for (const std::string& part : {written.bin_xxh3, written.lengths_xxh3, written.loss_xxh3}) add(sum, part);
  }
  return sum.hex();
}

std::string job_of(const PrepareOptions& options, const Tokenizer& tokenizer, InputFiles files) {
  RunningChecksum sum;
  add(sum, kVersion);
  add(sum, tokenizer.name());
  add(sum, tokenizer.hash());
  add(sum, tokenizer.end_of_document().value_or(-1));  // not part of hash(): other files and the caller decide it
  add_options(sum, options);
  while (const auto file = files.next()) {
    if (file->is_standard_input()) return "";
    std::error_code error;
    const auto time = fs::last_write_time(file->path, error);
    demand(!error, ExitCode::data, file->name(), ": ", error.message());
    add(sum, file->name());
    add(sum, file->bytes);
    add(sum, time.time_since_epoch().count());
  }
  return sum.hex();
}

void write_journal(const CorpusParts& parts, const PrepareJournal& journal) {
  Json json;
  json["job"] = journal.job;
  visit_numbers(journal, [&](const char* name, std::int64_t value) { json[name] = value; });
  json["continued"] = journal.writer.continued;
  json["bin_xxh3"] = journal.writer.bin_xxh3;
  json["lengths_xxh3"] = journal.writer.lengths_xxh3;
  json["loss_xxh3"] = journal.writer.loss_xxh3;
  write_file_atomically(parts.journal(), json.dump() + "\n");
}

std::optional<PrepareJournal> read_journal(const CorpusParts& parts, const std::string& job) {
  if (!path_exists(parts.journal())) return std::nullopt;
  PrepareJournal journal;
  try {
    nlohmann::json json = parse_json(read_file(parts.journal()), parts.journal().string());
    json.emplace("dropped_fields", 0);  // older journals do not count them
    journal.job = json.at("job").get<std::string>();
    if (job.empty() || journal.job != job) {
      log_info(concat(parts.journal().string(), ": the interrupted run had other inputs or options; starting over"));
      return std::nullopt;
    }
    bool sensible = true;
    visit_numbers(journal, [&](const char* name, std::int64_t& value) {
      value = json.at(name).get<std::int64_t>();
      sensible = sensible && value >= 0 && value < (std::int64_t{1} << 56);
    });
    journal.writer.continued = json.at("continued").get<std::vector<std::int64_t>>();
    journal.writer.bin_xxh3 = json.at("bin_xxh3").get<std::string>();
    journal.writer.lengths_xxh3 = json.at("lengths_xxh3").get<std::string>();
    journal.writer.loss_xxh3 = json.at("loss_xxh3").get<std::string>();
    if (sensible) return journal;
    log_warning(concat(parts.journal().string(), ": not a journal of Octet; starting over"));
  } catch (const Json::exception&) {
    log_warning(concat(parts.journal().string(), ": not a journal of Octet; starting over"));
  } catch (const SystemError&) {
    throw;  // the file may be whole
  } catch (const Error& error) {
    log_warning(concat(error.what(), "; starting over"));
  }
  return std::nullopt;
}

}  // namespace octet::data
