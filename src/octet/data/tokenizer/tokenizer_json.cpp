#include "octet/data/tokenizer/tokenizer_json.h"

#include "octet/base/require.h"
#include "octet/base/visible.h"

namespace octet::data {
namespace {

constexpr std::int32_t kMostTokens = 1 << 22;

}  // namespace

TokenizerJson::TokenizerJson(std::string_view json, const std::string& file) : file_(file), root_(parse_json(json, file)) {
  demand(root_.is_object(), ExitCode::data, file_, ": not a JSON object");
}

void TokenizerJson::refuse(const std::string& part) const {
  fail(ExitCode::config, file_, ": ", printable(part), " is not supported");
}

void TokenizerJson::broken(const std::string& what) const { fail(ExitCode::data, file_, ": ", printable(what)); }

const TokenizerJson::Json& TokenizerJson::member(const Json& object, const char* key) const {
  static const Json kNull;
  const auto found = object.find(key);
  return found == object.end() ? kNull : *found;
}

std::string TokenizerJson::text(const Json& object, const char* key, const std::string& where) const {
  const Json& value = member(object, key);
  if (!value.is_string()) broken(concat(where, ": \"", key, "\" must be a string"));
  return value.get<std::string>();
}

bool TokenizerJson::flag(const Json& object, const char* key, bool otherwise, const std::string& where) const {
  const Json& value = member(object, key);
  if (value.is_null()) return otherwise;
  if (!value.is_boolean()) broken(concat(where, ": \"", key, "\" must be true or false"));
  return value.get<bool>();
}

void TokenizerJson::expect(const Json& object, const char* key, bool wanted, bool otherwise, const std::string& where) const {
  if (flag(object, key, otherwise, where) != wanted) refuse(concat(where, " with ", key, wanted ? " false" : " true"));
}

std::int32_t TokenizerJson::id(const Json& value, const std::string& where) const {
  const bool good = value.is_number_integer() && value >= 0 && value < kMostTokens;
  if (!good) broken(concat(where, ": a token id in [0, ", kMostTokens, ") is missing"));
  return value.get<std::int32_t>();
}

std::vector<TokenizerJson::Part> TokenizerJson::parts(const char* key, const char* list) const {
  std::vector<Part> found;
  std::vector<const Json*> open = {&member(root_, key)};
  while (!open.empty()) {
    const Json& json = *open.back();
    open.pop_back();
    if (json.is_null()) continue;
    if (!json.is_object()) broken(concat(key, ": must be an object or null"));
    const std::string type = text(json, "type", key);
    if (type != "Sequence") {
      found.push_back({concat(key, " ", type), type, &json});
      continue;
    }
    const Json& steps = member(json, list);
    if (!steps.is_array()) broken(concat(key, " Sequence: \"", list, "\" must be an array"));
    for (auto step = steps.rbegin(); step != steps.rend(); ++step) open.push_back(&*step);
  }
  return found;
}

}  // namespace octet::data
