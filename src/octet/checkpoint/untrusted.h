// Handles names from files that are not trusted.
#pragma once

#include <string_view>

#include "octet/base/json.h"
#include "octet/base/visible.h"

namespace octet::checkpoint {

// Whether `name` is the name of a file in a directory: not empty, not "." or "..", and without "/" and NUL.
bool is_file_name(std::string_view name);

}  // namespace octet::checkpoint
