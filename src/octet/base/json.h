// JSON support. Include this header instead of nlohmann/json.hpp: it
// suppresses template instantiations that take long to compile.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

#include "octet/base/toml.h"

// json.cpp instantiates these templates once for the whole program.
extern template class nlohmann::basic_json<>;
extern template class nlohmann::basic_json<nlohmann::ordered_map>;
extern template class nlohmann::detail::serializer<nlohmann::json>;
extern template class nlohmann::detail::serializer<nlohmann::ordered_json>;

namespace octet {

using Json = nlohmann::ordered_json;

// Parses `text`, which this program or a trusted person wrote. If it is not JSON, is_discarded() of the result is true.
Json json_of(std::string_view text);

// Converts a TOML tree. Absent values of a table are left out; NaN and infinite reals become null.
Json to_json(const TomlNode& value);

}  // namespace octet
