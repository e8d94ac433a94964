#include "octet/models/registry.h"

#include <vector>

#include "octet/base/file.h"
#include "octet/base/names.h"
#include "octet/models/gpt_neox/gpt_neox.h"
#include "octet/models/llama/llama.h"
#include "octet/models/mistral/mistral.h"
#include "octet/models/mixtral/mixtral.h"

namespace octet::models {

const Family& family_of(const std::string& model_type, const std::string& source) {
  static const std::vector<Family> families = {llama_family(), mistral_family(), mixtral_family(), gpt_neox_family()};
  std::vector<std::string> known;
  for (const Family& family : families) {
    if (family.model_type == model_type) return family;
    known.push_back(family.model_type);
  }
  std::string list;
  for (const std::string& name : known) list += (list.empty() ? "" : ", ") + name;
  fail(ExitCode::data, source, ": model_type = \"", model_type, "\": not a family that octet knows (", list, ")",
       did_you_mean(model_type, known));
}

DecoderConfig parse_config(const nlohmann::json& config, const std::string& source) {
  demand(config.is_object(), ExitCode::data, source, ": not a JSON object");
  const auto type = config.find("model_type");
  demand(type != config.end() && type->is_string(), ExitCode::data, source, ": no model_type");
  return family_of(type->get<std::string>(), source).parse(config, source);
}

DecoderConfig read_config(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / "config.json";
  const std::string text = read_file(path);
  const nlohmann::json config = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  demand(!config.is_discarded(), ExitCode::data, path.string(), ": not valid JSON");
  return parse_config(config, path.string());
}

nlohmann::ordered_json config_json(const DecoderConfig& config, DType dtype) {
  nlohmann::ordered_json object = family_of(config.family, "config").write(config);
  object["torch_dtype"] = dtype == DType::f32 ? "float32" : "bfloat16";
  return object;
}

void write_config(const std::filesystem::path& directory, const DecoderConfig& config, DType dtype) {
  write_file_atomically(directory / "config.json", config_json(config, dtype).dump(2) + "\n");
}

std::vector<std::string> ignorable_names(const DecoderConfig& config) {
  const Family& family = family_of(config.family, "model");
  std::vector<std::string> names = family.ignorable;
  if (config.tied_head) names.push_back(family.modules.head + ".weight");
  return names;
}

parallel::NameTable names_of(Decoder& model) { return family_of(model.config().family, "model").names(model); }

}  // namespace octet::models
