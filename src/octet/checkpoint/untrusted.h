// Handles names and JSON from files that are not trusted.
#pragma once

#include <string>
#include <string_view>

#include "octet/base/json.h"

namespace octet::checkpoint {

// Returns a name from a file in quotes, safe for one line of an error message: control characters and invalid UTF-8 are escaped, and the
// name is cut after about 200 bytes.
std::string in_quotes(std::string_view text);

// Whether `name` is the name of a file in a directory: not empty, not "." or "..", and without "/" and NUL.
bool is_file_name(std::string_view name);

// Parses a JSON document. Refuses duplicate keys, which the JSON library accepts, and nesting deeper than `max_depth`. Throws
// Error{data} "SOURCE: reason".
nlohmann::json parse_json(std::string_view text, const std::string& source, int max_depth);

}  // namespace octet::checkpoint
