#include "octet/checkpoint/untrusted.h"

#include <cstdio>
#include <unordered_set>
#include <vector>

#include "octet/base/require.h"

namespace octet::checkpoint {
namespace {

constexpr std::size_t kShown = 200;

// Length of the UTF-8 sequence of a character beyond ASCII at the start of `text`; 0 when there is none.
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

}  // namespace

std::string in_quotes(std::string_view text) { return "\"" + escaped(text) + "\""; }

bool is_file_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string_view::npos &&
         name.find('\0') == std::string_view::npos;
}

nlohmann::json parse_json(std::string_view text, const std::string& source, int max_depth) {
  using Json = nlohmann::json;
  std::vector<std::unordered_set<std::string>> keys;  // of the objects and arrays that are open
  const auto check = [&](int, Json::parse_event_t event, Json& value) {
    switch (event) {
      case Json::parse_event_t::object_start:
      case Json::parse_event_t::array_start:
        keys.emplace_back();
        demand(keys.size() <= static_cast<std::size_t>(max_depth), ExitCode::data, source, ": JSON nested deeper than ",
               max_depth);
        break;
      case Json::parse_event_t::object_end:
      case Json::parse_event_t::array_end:
        keys.pop_back();
        break;
      case Json::parse_event_t::key: {
        const auto& key = value.get_ref<const std::string&>();
        demand(keys.back().insert(key).second, ExitCode::data, source, ": ", in_quotes(key), " stands twice");
        break;
      }
      case Json::parse_event_t::value:
        break;
    }
    return true;
  };
  try {
    return Json::parse(text.begin(), text.end(), check);
  } catch (const Json::exception& error) {
    std::string_view reason = error.what();  // "[json.exception.parse_error.101] parse error at line 1, ..."
    if (const std::size_t bracket = reason.find("] "); bracket != std::string_view::npos) reason.remove_prefix(bracket + 2);
    fail(ExitCode::data, source, ": not JSON: ", escaped(reason));
  }
}

}  // namespace octet::checkpoint
