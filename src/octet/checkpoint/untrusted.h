// What strangers wrote: names and JSON.
#pragma once

#include <string>
#include <string_view>

#include "octet/base/json.h"

namespace octet::checkpoint {

// A name out of a file, fit for one line of an error: in quotes, control characters and bytes that are not UTF-8 escaped, cut at
// 200 bytes.
std::string in_quotes(std::string_view text);

// Whether `name` names a file in a directory and nothing outside it.
bool is_file_name(std::string_view name);

// The document; refuses what the JSON library would let pass: duplicate keys and nesting deeper than `max_depth`.
// Throws Error{data} "SOURCE: reason".
nlohmann::json parse_json(std::string_view text, const std::string& source, int max_depth);

}  // namespace octet::checkpoint
