#include "octet/models/registry.h"

#include <set>
#include <utility>
#include <vector>

#include "octet/base/file.h"
#include "octet/base/names.h"
#include "octet/base/visible.h"
#include "octet/models/families.h"

namespace octet::models {

namespace {

const std::vector<Family>& families() {
  static const std::vector<Family> all = {llama_family(),     mistral_family(),  mixtral_family(), qwen2_family(), qwen3_family(),
                                          qwen3_moe_family(), gpt_neox_family(), gpt_neo_family(), olmo2_family(), phi3_family()};
  return all;
}

// An id, several, or none.
std::vector<std::int64_t> token_ids(const nlohmann::json& config, const char* key, const std::string& source) {
  const nlohmann::json value = config.value(key, nlohmann::json());
  std::vector<std::int64_t> result;
  const auto add = [&](const nlohmann::json& id) {
    if (!id.is_number_integer()) fail(ExitCode::data, source, ": ", key, " = ", shown(value), ": not a token's id");
    result.push_back(id.get<std::int64_t>());
  };
  if (value.is_array()) {
    for (const nlohmann::json& id : value) add(id);
  } else if (!value.is_null()) {
    add(value);
  }
  return result;
}

std::optional<std::int64_t> token_id(const nlohmann::json& config, const char* key, const std::string& source) {
  const std::vector<std::int64_t> ids = token_ids(config, key, source);
  demand(ids.size() < 2, ExitCode::data, source, ": ", key, " is several");
  return ids.empty() ? std::nullopt : std::optional(ids.front());
}

}  // namespace

std::vector<std::string> model_types() {
  std::vector<std::string> result;
  for (const Family& family : families()) result.push_back(family.model_type);
  return result;
}

const Family& family_of(const std::string& model_type, const std::string& source) {
  for (const Family& family : families()) {
    if (family.model_type == model_type) return family;
  }
  fail(ExitCode::data, source, ": model_type = ", in_quotes(model_type), ": not a family that octet knows (",
       joined(model_types()), ")", did_you_mean(model_type, model_types()));
}

DecoderConfig parse_config(const nlohmann::json& config, const std::string& source) {
  demand(config.is_object(), ExitCode::data, source, ": not a JSON object");
  const auto type = config.find("model_type");
  demand(type != config.end() && type->is_string(), ExitCode::data, source, ": no model_type");
  const Family& family = family_of(type->get<std::string>(), source);
  DecoderConfig result = family.parse(JsonReader(config, source));
  result.family = family.model_type;
  check(result, source);
  result.bos = token_id(config, "bos_token_id", source);
  result.pad = token_id(config, "pad_token_id", source);
  result.eos = token_ids(config, "eos_token_id", source);
  return result;
}

DecoderConfig read_config(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / "config.json";
  return parse_config(read_json(path), path.string());
}

nlohmann::ordered_json config_json(const DecoderConfig& config, DType dtype) {
  Json object = family_of(config.family, "config").write(config);
  object["torch_dtype"] = dtype == DType::f32 ? "float32" : "bfloat16";
  // Writes null for unknown ids. If a key is absent, other programs assume the family's usual id, and train no embedding of the
  // one that pads.
  object["bos_token_id"] = config.bos ? Json(*config.bos) : Json();
  object["pad_token_id"] = config.pad ? Json(*config.pad) : Json();
  object["eos_token_id"] = config.eos.empty() ? Json() : config.eos.size() == 1 ? Json(config.eos.front()) : Json(config.eos);
  return object;
}

void write_config(const std::filesystem::path& directory, const DecoderConfig& config, DType dtype) {
  write_file_atomically(directory / "config.json", config_json(config, dtype).dump(2) + "\n");
}

std::vector<ConfigDifference> config_differences(const DecoderConfig& a, const DecoderConfig& b) {
  const std::set<std::string> of_no_effect = {"architectures", "torch_dtype",  "initializer_range", "tokenizer",
                                              "bos_token_id",  "pad_token_id", "eos_token_id"};
  const Json x = config_json(a, DType::bf16), y = config_json(b, DType::bf16);
  std::set<std::string> keys;
  for (const Json& json : {x, y}) {
    for (const auto& [key, value] : json.items()) keys.insert(key);
  }
  const auto text = [](const Json& json, const std::string& key) { return json.contains(key) ? json[key].dump() : ""; };
  std::vector<ConfigDifference> result;
  for (const std::string& key : keys) {
    ConfigDifference difference{.key = key, .a = text(x, key), .b = text(y, key)};
    if (difference.a != difference.b && !of_no_effect.contains(key)) result.push_back(std::move(difference));
  }
  return result;
}

std::vector<std::string> ignorable_names(const DecoderConfig& config) {
  const Family& family = family_of(config.family, "model");
  std::vector<std::string> names = family.ignorable;
  if (config.tied_head) names.push_back(family.modules.head + ".weight");
  return names;
}

parallel::NameTable names_of(Decoder& model) { return family_of(model.config().family, "model").names(model); }

}  // namespace octet::models
