#include "octet/base/json.h"

#include <cmath>

template class nlohmann::basic_json<>;
template class nlohmann::basic_json<nlohmann::ordered_map>;
template class nlohmann::detail::serializer<nlohmann::json>;
template class nlohmann::detail::serializer<nlohmann::ordered_json>;

namespace octet {

Json json_of(std::string_view text) { return Json::parse(text, nullptr, /*allow_exceptions=*/false); }

Json to_json(const TomlNode& value) {
  using Kind = TomlNode::Kind;
  switch (value.kind) {
    case Kind::absent: return nullptr;
    case Kind::boolean: return value.boolean;
    case Kind::integer: return value.integer;
    case Kind::real: return std::isfinite(value.real) ? Json(value.real) : Json();
    case Kind::string: return value.string;
    case Kind::array: {
      Json list = Json::array();
      for (const TomlNode& item : value.items) list.push_back(to_json(item));
      return list;
    }
    case Kind::table: {
      Json object = Json::object();
      for (const TomlEntry& entry : value.entries) {
        if (entry.value.kind != Kind::absent) object[entry.key] = to_json(entry.value);
      }
      return object;
    }
  }
  return nullptr;
}

}  // namespace octet
