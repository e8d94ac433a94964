#include "octet/telemetry/jsonl.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <system_error>

#include "octet/base/directory.h"
#include "octet/base/file.h"
#include "octet/base/json.h"
#include "octet/base/require.h"
#include "octet/base/system_call.h"
#include "octet/telemetry/stragglers.h"

namespace octet::telemetry {
namespace {
using nlohmann::json;

template <class Field>
json to_value(const Field& field) {
  return field;
}
json to_value(const std::optional<double>& field) { return field && std::isfinite(*field) ? json(*field) : json(nullptr); }
json to_value(double field) { return std::isfinite(field) ? json(field) : json(nullptr); }
nlohmann::ordered_json to_value(const JsonText& field) { return parse_ordered_json(field.text, "a field"); }
nlohmann::ordered_json to_value(const NamedNumbers& field) {
  nlohmann::ordered_json object;  // null until it has a key
  for (const auto& [name, number] : field) object[name] = to_value(number);
  return object;
}

template <class Record>
std::string dump(const Record& record, int indent) {
  nlohmann::ordered_json object;
  visit_fields(record, [&](const FieldName& name, const auto& field) { object[name.json] = to_value(field); });
  // A tensor name or file name need not be valid UTF-8, but a JSON line must be.
  return object.dump(indent, ' ', false, json::error_handler_t::replace);
}

// Fills a record's fields from the events of nlohmann's SAX parser. No tree is built, so a malicious line cannot use much
// memory. A handler that returns false ends the parse.
template <class Record>
class RecordReader : public nlohmann::json_sax<json> {
 public:
  explicit RecordReader(std::string_view required) : required_(required) {
    visit_fields(record_, [](const FieldName&, auto& field) {
      if constexpr (std::is_same_v<std::decay_t<decltype(field)>, double>) field = kUnknown;
    });
  }
  const Record& record() const { return record_; }
  bool has_required() const { return has_required_; }

  bool null() override {
    if (within_) return name_number(kUnknown);
    if (list_) return false;
    return assign([](auto& field) {
      using Field = std::decay_t<decltype(field)>;
      if constexpr (std::is_same_v<Field, double>) field = kUnknown;
      if constexpr (std::is_same_v<Field, std::optional<double>>) field.reset();
      if constexpr (std::is_same_v<Field, NamedNumbers>) field.clear();
      return std::is_same_v<Field, double> || std::is_same_v<Field, std::optional<double>> || std::is_same_v<Field, NamedNumbers> ||
             std::is_same_v<Field, JsonText>;
    });
  }
  bool boolean(bool) override {
    if (within_ || list_) return false;
    return assign([](auto&) { return false; });
  }
  bool number_integer(number_integer_t value) override { return number(value); }
  bool number_unsigned(number_unsigned_t value) override {
    const bool fits = value <= static_cast<number_unsigned_t>(std::numeric_limits<std::int64_t>::max());
    return fits ? number(static_cast<std::int64_t>(value)) : number(static_cast<double>(value));
  }
  bool number_float(number_float_t value, const string_t&) override { return number(value); }
  bool string(string_t& value) override {
    if (within_ || list_) return false;
    return assign([&](auto& field) {
      if constexpr (std::is_same_v<std::decay_t<decltype(field)>, std::string>) {
        field = value;
        return true;
      }
      return false;
    });
  }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return open(/*object=*/true); }
  bool end_object() override {
    within_ = nullptr;
    return --depth_, true;
  }
  // A line that is itself an array opens depth 1 without a key.
  bool start_array(std::size_t) override { return depth_ > 0 && open(/*object=*/false); }
  bool end_array() override {
    list_ = nullptr;
    return --depth_, true;
  }
  bool key(string_t& value) override {
    if (depth_ == 1) key_ = value;
    if (within_) name_ = value;
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const json::exception&) override { return false; }

 private:
  template <class Value>
  bool number(Value value) {
    if (within_) return name_number(static_cast<double>(value));
    if (list_) return list_number(value);
    return assign([&](auto& field) {
      using Field = std::decay_t<decltype(field)>;
      if constexpr (std::is_same_v<Field, double> || std::is_same_v<Field, std::optional<double>>) {
        field = static_cast<double>(value);
        return true;
      } else if constexpr (std::is_same_v<Field, std::int64_t> && std::is_same_v<Value, std::int64_t>) {
        field = value;
        return true;
      }
      return false;
    });
  }
  // Applies `set` to the field of the current key. Returns false if the field
  // does not accept the value. Values below an unknown key are ignored.
  template <class Set>
  bool assign(Set&& set) {
    if (depth_ == 0) return false;  // the line is a bare value
    if (depth_ > 1) return true;
    bool fits = true;
    visit_fields(record_, [&](const FieldName& name, auto& field) {
      if (key_ == name.json) fits = set(field);
    });
    has_required_ |= key_ == required_;
    return fits;
  }
  bool name_number(double value) {
    within_->emplace_back(name_, value);
    return true;
  }
  bool list_number(std::int64_t value) { return list_->push_back(value), true; }
  bool list_number(double) { return false; }
  bool open(bool object) {
    if (within_ || list_) return false;
    bool known = false;
    if (depth_ == 1) {
      visit_fields(record_, [&](const FieldName& name, auto& field) {
        if (key_ != name.json || std::is_same_v<std::decay_t<decltype(field)>, JsonText>) return;
        known = true;
        if constexpr (std::is_same_v<std::decay_t<decltype(field)>, NamedNumbers>) {
          if (object) within_ = &field;
        }
        if constexpr (std::is_same_v<std::decay_t<decltype(field)>, std::vector<std::int64_t>>) {
          if (!object) list_ = &field;
        }
      });
    }
    ++depth_;
    return !known || within_ || list_;
  }

  Record record_;
  std::string_view required_;
  bool has_required_ = false;
  std::string key_;
  NamedNumbers* within_ = nullptr;  // the field whose object is being read
  std::vector<std::int64_t>* list_ = nullptr;  // the field whose list is being read
  std::string name_;                // the last key in it
  int depth_ = 0;
};

template <class Record>
std::optional<Record> parse_object(std::string_view text, std::string_view required) {
  RecordReader<Record> reader(required);
  if (read_json_events(text, reader) || !reader.has_required()) return std::nullopt;
  return reader.record();
}

// Calls visit(line, whole) for each line that is not empty. `whole` is false for a last line without a newline.
template <class Visitor>
void each_line(std::string_view text, Visitor&& visit) {
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    const bool whole = end != std::string_view::npos;
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(whole ? end + 1 : text.size());
    if (!line.empty()) visit(line, whole);
  }
}

// Cuts a file to `size` bytes, which needs no room on a full disk.
void cut(const std::filesystem::path& path, std::size_t size) {
  std::error_code error;
  std::filesystem::resize_file(path, size, error);
  if (error) throw SystemError(ExitCode::internal, concat(path.string(), ": cannot cut: ", error.message()), error.value());
}

// Calls visit(line, complete, size) for the lines of a file from the last one on, until it returns false. `complete` is false for
// a last line without a newline, and `size` is how many bytes there are with that line.
template <class Visitor>
void each_line_from_end(const FileReader& file, Visitor&& visit) {
  constexpr std::size_t kBlock = std::size_t{1} << 16;
  std::string text;  // from `at` to the end of the line that is read next
  for (std::size_t at = file.size(); at > 0;) {
    const std::size_t block = std::min(at, std::max(kBlock, text.size()));
    at -= block;
    text.insert(0, block, '\0');
    const std::size_t read = file.read_up_to(at, std::as_writable_bytes(std::span(text.data(), block)));
    if (read < block) text.resize(read);  // the file was cut meanwhile, and the lines after that are gone
    while (!text.empty()) {
      const bool complete = text.back() == '\n';
      const std::size_t end = text.size() - (complete ? 1 : 0);
      const std::size_t before = end == 0 ? std::string::npos : text.rfind('\n', end - 1);
      if (before == std::string::npos && at > 0) break;  // the line begins in an earlier block
      const std::size_t begin = before == std::string::npos ? 0 : before + 1;
      if (!visit(std::string_view(text).substr(begin, end - begin), complete, at + text.size())) return;
      text.resize(begin);
    }
  }
}

// Reads the lines of a file from its end back to the last record with step <= last_step. Returns the size of the file up to and
// including that record. Calls foreign(line) for each complete line after it that is not a record.
template <class Record, class Foreign>
std::size_t size_up_to(const FileReader& file, std::int64_t last_step, Foreign&& foreign) {
  std::size_t kept = 0;
  each_line_from_end(file, [&](std::string_view line, bool complete, std::size_t size) {
    const auto record = from_json_line<Record>(line);
    if (record && record->step <= last_step) {
      kept = size;
      return false;
    }
    if (!record && complete && !line.empty()) foreign(line);
    return true;
  });
  return kept;
}

// Removes the records of steps > last_step and an incomplete last line, and opens the file. Lines that are not records stay,
// because another program wrote them.
template <class Record>
AppendFile open_after(const std::filesystem::path& path, std::int64_t last_step) {
  if (!is_file(path)) return AppendFile(path);
  const FileReader file(path);
  std::vector<std::string> found;  // the last one first
  const auto keep = [&](std::string_view line) { found.push_back(concat(line, '\n')); };
  const std::size_t kept = size_up_to<Record>(file, last_step, keep);
  std::string others;
  for (auto line = found.rbegin(); line != found.rend(); ++line) others += *line;
  if (others.empty() && kept < file.size()) {
    cut(path, kept);
  } else if (kept + others.size() < file.size()) {
    std::string text(kept, '\0');
    file.read_at(0, std::as_writable_bytes(std::span(text)));
    write_file_atomically(path, text + others);
  }
  AppendFile result(path);
  char last = '\n';
  if (kept == file.size() && kept > 0) file.read_at(kept - 1, std::as_writable_bytes(std::span(&last, 1)));
  if (last != '\n') result.append("\n");
  return result;
}
}  // namespace

template <class Record>
std::string to_json_line(const Record& record) {
  return dump(record, -1);
}

template <class Record>
std::optional<Record> from_json_line(std::string_view line) {
  std::optional<Record> record = parse_object<Record>(line, "step");
  if (record && record->step < 0) record.reset();
  return record;
}

template <class Record>
JsonlContents<Record> parse_jsonl(std::string_view text) {
  JsonlContents<Record> contents;
  each_line(text, [&](std::string_view line, bool) {
    if (auto record = from_json_line<Record>(line)) {
      contents.records.push_back(std::move(*record));
    } else {
      ++contents.broken_lines;
    }
  });
  return contents;
}

template <class Record>
JsonlContents<Record> read_jsonl(const std::filesystem::path& path) {
  return parse_jsonl<Record>(read_file(path));
}

template <class Record>
std::optional<Record> last_record(const std::filesystem::path& path) {
  std::optional<Record> last;
  each_line_from_end(FileReader(path), [&](std::string_view line, bool, std::size_t) {
    last = from_json_line<Record>(line);
    return !last;
  });
  return last;
}

template <class Record>
std::size_t size_up_to(const FileReader& file, std::int64_t last_step) {
  return size_up_to<Record>(file, last_step, [](std::string_view) {});
}

template <class Record>
JsonlWriter<Record>::JsonlWriter(std::filesystem::path path, std::optional<std::int64_t> last_step)
    : file_(open_after<Record>(path, last_step.value_or(-1))) {}

template <class Record>
void JsonlWriter<Record>::write(const Record* records, std::size_t count) {
  std::string lines;
  for (std::size_t i = 0; i < count; ++i) lines.append(to_json_line(records[i])).push_back('\n');
  file_.append(lines);
}

template <class Record>
void JsonlWriter<Record>::rewind(std::int64_t last_step) {
  file_ = open_after<Record>(file_.path(), last_step);
}

template std::string to_json_line(const StepMetrics&);
template std::string to_json_line(const HealthSample&);
template std::string to_json_line(const AttentionSample&);
template std::string to_json_line(const ExpertSample&);
template std::string to_json_line(const StragglerRecord&);
template std::optional<StepMetrics> from_json_line(std::string_view);
template std::optional<HealthSample> from_json_line(std::string_view);
template std::optional<AttentionSample> from_json_line(std::string_view);
template std::optional<ExpertSample> from_json_line(std::string_view);
template std::optional<StragglerRecord> from_json_line(std::string_view);
template JsonlContents<StepMetrics> parse_jsonl(std::string_view);
template JsonlContents<HealthSample> parse_jsonl(std::string_view);
template JsonlContents<AttentionSample> parse_jsonl(std::string_view);
template JsonlContents<ExpertSample> parse_jsonl(std::string_view);
template JsonlContents<StragglerRecord> parse_jsonl(std::string_view);
template JsonlContents<StepMetrics> read_jsonl(const std::filesystem::path&);
template JsonlContents<HealthSample> read_jsonl(const std::filesystem::path&);
template JsonlContents<AttentionSample> read_jsonl(const std::filesystem::path&);
template JsonlContents<ExpertSample> read_jsonl(const std::filesystem::path&);
template JsonlContents<StragglerRecord> read_jsonl(const std::filesystem::path&);
template std::optional<StepMetrics> last_record(const std::filesystem::path&);
template std::size_t size_up_to<StepMetrics>(const FileReader&, std::int64_t);
template std::size_t size_up_to<HealthSample>(const FileReader&, std::int64_t);
template std::size_t size_up_to<AttentionSample>(const FileReader&, std::int64_t);
template std::size_t size_up_to<ExpertSample>(const FileReader&, std::int64_t);
template std::size_t size_up_to<StragglerRecord>(const FileReader&, std::int64_t);
template class JsonlWriter<StepMetrics>;
template class JsonlWriter<HealthSample>;
template class JsonlWriter<AttentionSample>;
template class JsonlWriter<ExpertSample>;
template class JsonlWriter<StragglerRecord>;

void write_run_info(const std::filesystem::path& path, const RunInfo& info) {
  write_file_atomically(path, dump(info, 2) + "\n");
}

RunInfo read_run_info(const std::filesystem::path& path) {
  const std::string text = read_file(path);
  auto info = parse_object<RunInfo>(text, "name");
  demand(info.has_value(), ExitCode::data, path.string(),
         ": not the description of a run (a JSON object with a name, whose fields have the right types). Starting the run again "
         "writes it anew, or says what to do");
  const Json tree = json_of(text);
  visit_fields(*info, [&](const FieldName& name, auto& field) {
    if constexpr (std::is_same_v<std::decay_t<decltype(field)>, JsonText>) {
      if (tree.is_object() && tree.contains(name.json)) field.text = tree.at(name.json).dump();
    }
  });
  return *std::move(info);
}

}  // namespace octet::telemetry
