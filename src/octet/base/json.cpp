#include "octet/base/json.h"

#include <cmath>

namespace octet {

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
