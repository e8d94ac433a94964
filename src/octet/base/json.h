// The one way JSON is included.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

#include "octet/base/toml.h"

// Compiled once, in json.cpp, instead of wherever JSON is read or written.
extern template class nlohmann::basic_json<>;
extern template class nlohmann::basic_json<nlohmann::ordered_map>;
extern template class nlohmann::detail::serializer<nlohmann::json>;
extern template class nlohmann::detail::serializer<nlohmann::ordered_json>;

namespace octet {

using Json = nlohmann::ordered_json;

// Of a text from this program or from someone trusted; is_discarded() where it is not JSON.
Json json_of(std::string_view text);

// Absent values are left out; reals that are not finite become null.
Json to_json(const TomlNode& value);

}  // namespace octet
