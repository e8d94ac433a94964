#include "octet/checkpoint/untrusted.h"

#include <cstdio>
#include <unordered_set>
#include <vector>

#include "octet/base/require.h"

namespace octet::checkpoint {
namespace {

constexpr std::size_t kShown = 200;

// The length of the multi-byte UTF-8 character at the start of `text`, or 0 if there is none.
std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const std::size_t length = byte(0) >= 0xC2 && byte(0) < 0xE0 ? 2
                             : (byte(0) & 0xF0) == 0xE0        ? 3
                             : (byte(0) & 0xF8) == 0xF0        ? 4
                                                               : 0;
  if (length > text.size()) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  return length;
}

std::string escaped(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    if (result.size() >= kShown) return result + "...";
    const auto c = static_cast<unsigned char>(text[0]);
    std::size_t length = c >= 0x20 && c < 0x7F ? 1 : c >= 0x80 ? utf8_length(text) : 0;
    if (length == 2 && c == 0xC2 && static_cast<unsigned char>(text[1]) < 0xA0) length = 0;  // U+0080 to U+009F control terminals
    if (length > 0) {
      result += text.substr(0, length);
    } else {
      char code[8];
      std::snprintf(code, sizeof code, "\\x%02x", c);
      result += code;
      length = 1;
    }
    text.remove_prefix(length);
  }
  return result;
}

// Refuses duplicate keys and deep nesting. It is a pass of its own because the library's parser with a callback visits all members of an
// object after each member, which takes minutes for many tensors.
class Guard : public nlohmann::json_sax<nlohmann::json> {
 public:
  Guard(const std::string& source, int max_depth) : source_(source), max_depth_(static_cast<std::size_t>(max_depth)) {}

  bool start_object(std::size_t) override { return open(); }
  bool start_array(std::size_t) override { return open(); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(std::string& name) override {
    demand(keys_.back().insert(name).second, ExitCode::data, source_, ": ", in_quotes(name), " occurs twice");
    return true;
  }
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(std::int64_t) override { return true; }
  bool number_unsigned(std::uint64_t) override { return true; }
  bool number_float(double, const std::string&) override { return true; }
  bool string(std::string&) override { return true; }
  bool binary(nlohmann::json::binary_t&) override { return true; }
  bool parse_error(std::size_t, const std::string&, const nlohmann::json::exception&) override { return false; }

 private:
  bool open() {
    keys_.emplace_back();
    demand(keys_.size() <= max_depth_, ExitCode::data, source_, ": JSON nested deeper than ", max_depth_);
    return true;
  }
  bool close() {
    keys_.pop_back();
    return true;
  }

  const std::string& source_;
  std::size_t max_depth_;
  std::vector<std::unordered_set<std::string>> keys_;  // keys of each open object; empty for arrays
};

}  // namespace

std::string in_quotes(std::string_view text) { return "\"" + escaped(text) + "\""; }

bool is_file_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string_view::npos &&
         name.find('\0') == std::string_view::npos;
}

nlohmann::json parse_json(std::string_view text, const std::string& source, int max_depth) {
  using Json = nlohmann::json;
  Guard guard(source, max_depth);
  Json::sax_parse(text.begin(), text.end(), &guard);  // the second parse reports syntax errors
  try {
    return Json::parse(text.begin(), text.end());
  } catch (const Json::exception& error) {
    std::string_view reason = error.what();  // "[json.exception.parse_error.101] parse error at line 1, ..."
    if (const std::size_t bracket = reason.find("] "); bracket != std::string_view::npos) reason.remove_prefix(bracket + 2);
    fail(ExitCode::data, source, ": not JSON: ", escaped(reason));
  }
}

}  // namespace octet::checkpoint
