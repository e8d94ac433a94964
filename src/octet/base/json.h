// JSON support. Include this header instead of nlohmann/json.hpp: it
// suppresses template instantiations that take long to compile.
//
// All JSON of the program is parsed by the functions below, which bound depth and size and refuse keys that occur twice in an
// object. Depth matters most: the library's own trees are copied, written and destroyed recursively, so that a few hundred
// thousand brackets would overflow the stack. tools/check_layers.py finds other calls of the library's parsers.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "octet/base/toml.h"

// json_templates.cpp instantiates these templates once for the whole program.
extern template class nlohmann::basic_json<>;
extern template class nlohmann::basic_json<nlohmann::ordered_map>;
extern template class nlohmann::detail::serializer<nlohmann::json>;
extern template class nlohmann::detail::serializer<nlohmann::ordered_json>;

namespace octet {

using Json = nlohmann::ordered_json;

inline constexpr int kJsonDepth = 64;  // objects and lists within each other
inline constexpr std::size_t kJsonBytes = std::size_t{1}
                                          << 30;     // larger than any index or manifest; a tree takes about ten times as much
inline constexpr std::size_t kOrderedKeys = 10'000;  // of an object whose order is kept: n keys take n^2 comparisons

// Parses a document. Throws Error{data} "SOURCE: line L, column C: REASON".
nlohmann::json parse_json(std::string_view text, const std::string& source, int max_depth = kJsonDepth);
// Does the same and keeps the keys in the order of the text.
Json parse_ordered_json(std::string_view text, const std::string& source);
// Parses a file. Also throws Error{data} if the file cannot be read.
nlohmann::json read_json(const std::filesystem::path& path);
Json read_ordered_json(const std::filesystem::path& path);
// Parses text of unknown origin and does not throw: is_discarded() of the result is true if `text` is refused.
Json json_of(std::string_view text);

// Why a text is refused, and at which byte, counted from 1.
struct JsonFault {
  std::size_t byte = 0;
  std::string reason;
};
// Sends the values of `text` to `events` and builds no tree. Returns the first fault, or nothing. An event that returns false
// is a fault, too.
std::optional<JsonFault> read_json_events(std::string_view text, nlohmann::json_sax<nlohmann::json>& events);

// Returns a value as text. Bytes that are not UTF-8, which the name of a file may have, become U+FFFD.
std::string json_text(const Json& value, int indent = -1);
// The beginning of a value as text, for a message.
std::string shown(const nlohmann::json& value);

// Converts a TOML tree. Absent values of a table are left out; NaN and infinite reals become null.
Json to_json(const TomlNode& value);

}  // namespace octet
