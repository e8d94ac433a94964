// The one way JSON is included.
#pragma once

#include <nlohmann/json.hpp>

#include "octet/base/toml.h"

namespace octet {

using Json = nlohmann::ordered_json;

// Absent values are left out; reals that are not finite become null.
Json to_json(const TomlNode& value);

}  // namespace octet
