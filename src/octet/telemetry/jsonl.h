// The files metrics.jsonl, fp8_health.jsonl, attention_health.jsonl, expert_loads.jsonl and stragglers.jsonl, which hold one
// JSON object per line. If a process is killed while it writes a line, the reader and the next writer drop the incomplete line.
// `Record` is StepMetrics, HealthSample, AttentionSample, ExpertSample or StragglerRecord.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "octet/base/file.h"
#include "octet/telemetry/append_file.h"
#include "octet/telemetry/metrics.h"

namespace octet::telemetry {

// A record as one line, without the newline.
template <class Record>
std::string to_json_line(const Record& record);

// Parses a line. Returns nothing unless the line is a JSON object whose step is a whole number >= 0 and whose known fields are
// null or have the right type. Unknown fields are ignored. A missing number becomes NaN, a missing optional stays empty.
template <class Record>
std::optional<Record> from_json_line(std::string_view line);

template <class Record>
struct JsonlContents {
  std::vector<Record> records;     // in the order of the file
  std::int64_t broken_lines = 0;   // number of lines that could not be parsed
};
template <class Record>
JsonlContents<Record> parse_jsonl(std::string_view text);
// Throws Error{data} "PATH: reason" if the file cannot be read.
template <class Record>
JsonlContents<Record> read_jsonl(const std::filesystem::path& path);

// Returns the length in bytes of the part of a file that ends with the last line of a step up to last_step. Reads the file from
// its end, because steps grow from line to line. Lines without a step after that line do not count.
template <class Record>
std::size_t size_up_to(const FileReader& file, std::int64_t last_step);

template <class Record>
class JsonlWriter {
 public:
  // Opens the file for appending. Removes the records of steps > last_step, or all records without last_step, and an incomplete
  // last line. Lines that are not records stay, because another program or a later version may have written them. Reads the
  // file from its end, up to the last record that stays. Every failure, including a full disk, throws Error{internal} "PATH:
  // reason".
  JsonlWriter(std::filesystem::path path, std::optional<std::int64_t> last_step);

  void write(const Record& record) { write(&record, 1); }
  void write(const Record* records, std::size_t count);
  // Does the same again. Called when training goes back to a checkpoint.
  void rewind(std::int64_t last_step);
  // Calls fsync. Call it before a checkpoint is declared complete, so that no metrics of the checkpoint's steps are lost.
  void sync() { file_.sync(); }

 private:
  AppendFile file_;
};

// The file run.json. Reading throws Error{data} "PATH: reason" unless the file is a JSON object with fields of the right types.
void write_run_info(const std::filesystem::path& path, const RunInfo& info);
RunInfo read_run_info(const std::filesystem::path& path);

}  // namespace octet::telemetry
