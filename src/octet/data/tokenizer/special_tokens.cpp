#include "octet/data/tokenizer/special_tokens.h"

#include <algorithm>

#include "octet/base/directory.h"
#include "octet/base/file.h"
#include "octet/base/json.h"
#include "octet/base/require.h"
#include "octet/base/visible.h"

namespace octet::data {
namespace {

namespace fs = std::filesystem;

// Returns a member of the JSON object in `file`, or null if there is no such file or member.
nlohmann::json member(const fs::path& file, const char* key) {
  if (!path_exists(file)) return {};
  const auto json = read_json(file);
  demand(json.is_object(), ExitCode::data, file.string(), ": not a JSON object");
  return json.value(key, nlohmann::json());
}

}  // namespace

std::optional<std::int32_t> end_of_document(const fs::path& folder, const BpeDefinition& definition) {
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json"}) {
    nlohmann::json token = member(folder / name, "eos_token");
    if (token.is_object()) token = token.value("content", nlohmann::json());
    if (token.is_null()) continue;
    demand(token.is_string(), ExitCode::data, (folder / name).string(), ": \"eos_token\" must be a string");
    const auto found = std::find(definition.pieces.begin(), definition.pieces.end(), token.get<std::string>());
    demand(found != definition.pieces.end(), ExitCode::data, (folder / name).string(), ": eos_token \"",
           printable(token.get<std::string>()), "\" is not a token of ", definition.file);
    return static_cast<std::int32_t>(found - definition.pieces.begin());
  }
  nlohmann::json id = member(folder / "config.json", "eos_token_id");
  if (id.is_array() && !id.empty()) id = id.front();
  if (!id.is_number_integer()) return definition.end_of_document;
  demand(id >= 0 && id < definition.pieces.size(), ExitCode::data, (folder / "config.json").string(), ": eos_token_id ",
         id.dump(), " is not a token of ", definition.file);
  return id.get<std::int32_t>();
}

}  // namespace octet::data
