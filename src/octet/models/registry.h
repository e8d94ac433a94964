// Model families by the `model_type` of their config.json.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "octet/base/json.h"
#include "octet/models/decoder/config_json.h"
#include "octet/models/decoder/decoder.h"
#include "octet/models/decoder/names.h"

namespace octet::models {

// A family: how its config.json is read and written, and its tensor names.
struct Family {
  std::string model_type;
  DecoderConfig (*parse)(const JsonReader& read);  // leaves the family, the ids of tokens and all checks to parse_config()
  nlohmann::ordered_json (*write)(const DecoderConfig& config);
  parallel::NameTable (*names)(Decoder& model) = parameter_names;
  DecoderModules modules = {};
  std::vector<std::string> ignorable = {};  // globs of tensors in old checkpoints that follow from the config
};

// Returns the model types of all families, Llama's first.
std::vector<std::string> model_types();
// Throws Error{data} naming `source` and the known families.
const Family& family_of(const std::string& model_type, const std::string& source);

// Parses the contents of a config.json; messages name its path, `source`. Throws Error{data} that names each key which is
// missing or not supported.
DecoderConfig parse_config(const nlohmann::json& config, const std::string& source);
// Reads DIR/config.json.
DecoderConfig read_config(const std::filesystem::path& directory);
// Returns a config.json for weights stored as `dtype`, BF16 or F32.
nlohmann::ordered_json config_json(const DecoderConfig& config, DType dtype);
// Writes config_json() as DIR/config.json.
void write_config(const std::filesystem::path& directory, const DecoderConfig& config, DType dtype = DType::bf16);

// A member of config.json in which two models differ, with its values as JSON; "" if the member is absent.
struct ConfigDifference {
  std::string key, a, b;
};
// Returns the members that differ and affect what the models compute, in alphabetical order.
std::vector<ConfigDifference> config_differences(const DecoderConfig& a, const DecoderConfig& b);

// Returns globs of tensors that a model directory may hold although this model does not read them.
std::vector<std::string> ignorable_names(const DecoderConfig& config);
// Returns the Hugging Face names of all tensors of the model except adapters.
parallel::NameTable names_of(Decoder& model);

}  // namespace octet::models
