#include "octet/data/jsonl.h"


#include "octet/base/json.h"
#include "octet/base/require.h"

namespace octet::data {
namespace {

// A SAX handler that keeps the string of one field and discards everything else.
class FieldReader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit FieldReader(const std::string& field) : field_(field) {}

  bool null() override { return value("null"); }
  bool boolean(bool) override { return value("a boolean"); }
  bool number_integer(number_integer_t) override { return value("a number"); }
  bool number_unsigned(number_unsigned_t) override { return value("a number"); }
  bool number_float(number_float_t, const string_t&) override { return value("a number"); }
  bool binary(binary_t&) override { return value("binary"); }
  bool string(string_t& text) override {
    if (wanted()) {
      found = true;
      wrong_kind = nullptr;
      result = std::move(text);
    }
    return value(nullptr);
  }
  bool start_object(std::size_t) override { return open("an object"); }
  bool start_array(std::size_t) override {
    if (depth_ == 0) top_is_object = false;
    return open("an array");
  }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& name) override {
    if (depth_ == 1) at_field_ = name == field_;
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const nlohmann::json::exception&) override { return false; }

  std::string result;
  bool found = false;
  bool top_is_object = true;
  const char* wrong_kind = nullptr;

 private:
  bool wanted() const { return depth_ == 1 && at_field_; }
  // Called for every scalar value. `kind` names its type for the error message; nullptr means a string.
  bool value(const char* kind) {
    if (depth_ == 0) top_is_object = false;
    if (wanted() && kind) wrong_kind = kind;
    return true;
  }
  bool open(const char* kind) {
    if (wanted()) wrong_kind = kind;
    ++depth_;
    return true;
  }
  bool close() {
    --depth_;
    return true;
  }

  const std::string& field_;
  std::int64_t depth_ = 0;
  bool at_field_ = false;
};

}  // namespace

std::string jsonl_text(std::string_view line, const std::string& field, const std::string& file, std::int64_t line_number) {
  FieldReader reader(field);
  const auto fault = read_json_events(line, reader);
  const auto check = [&](bool holds, const auto&... parts) {
    demand(holds, ExitCode::data, file, ":", line_number, ": ", parts...);
  };
  if (fault) check(false, "column ", fault->byte, ": ", fault->reason, array_advice(line, line_number));
  check(reader.top_is_object, "not a JSON object", array_advice(line, line_number));
  check(reader.wrong_kind == nullptr, "field \"", field, "\" is ", reader.wrong_kind ? reader.wrong_kind : "", ", not a string");
  check(reader.found, "no field \"", field, "\"");
  return std::move(reader.result);
}

std::string array_advice(std::string_view line, std::int64_t line_number) {
  const std::size_t first = line.find_first_not_of(" \t\r\n");
  if (line_number != 1 || first == std::string_view::npos || line[first] != '[') return "";
  return "; if the file is one JSON array, `jq -c '.[]'` writes its members one a line";
}

bool is_blank(std::string_view line) { return line.find_first_not_of(" \t\r\n") == std::string_view::npos; }

}  // namespace octet::data
