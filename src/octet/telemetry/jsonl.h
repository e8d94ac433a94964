// metrics.jsonl and fp8_health.jsonl: one JSON object per line. Lines are appended whole; a line that a killed process left
// half-written is dropped by the reader and by the next writer. `Record` is StepMetrics or HealthSample.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "octet/telemetry/append_file.h"
#include "octet/telemetry/metrics.h"

namespace octet::telemetry {

// One line, without the newline.
template <class Record>
std::string to_json_line(const Record& record);

// Empty unless `line` is a JSON object with a step that is a whole number >= 0 and with every known field null or of its
// type. Unknown fields are passed over; missing numbers are NaN, missing optionals empty.
template <class Record>
std::optional<Record> from_json_line(std::string_view line);

template <class Record>
struct JsonlContents {
  std::vector<Record> records;     // in the order of the file
  std::int64_t broken_lines = 0;   // passed over
};
template <class Record>
JsonlContents<Record> parse_jsonl(std::string_view text);
// Throws Error{data} "PATH: reason" when the file cannot be read.
template <class Record>
JsonlContents<Record> read_jsonl(const std::filesystem::path& path);

template <class Record>
class JsonlWriter {
 public:
  // Opens for appending. What is there already is cut back, atomically, to the whole lines with step <= last_step; with no
  // last_step the file starts empty. Every failure (a full disk included) throws Error{internal} "PATH: reason".
  JsonlWriter(std::filesystem::path path, std::optional<std::int64_t> last_step);

  void write(const Record& record) { write(&record, 1); }
  void write(const Record* records, std::size_t count);
  // Forgets the lines with step > last_step: training went back to a checkpoint.
  void rewind(std::int64_t last_step);
  // To the disk itself: call before a checkpoint is declared complete.
  void sync() { file_.sync(); }

 private:
  AppendFile file_;
};

// run.json. Reading throws Error{data} "PATH: reason" for anything but an object with fields of the right types.
void write_run_info(const std::filesystem::path& path, const RunInfo& info);
RunInfo read_run_info(const std::filesystem::path& path);

}  // namespace octet::telemetry
