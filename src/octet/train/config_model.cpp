// [model]: from a preset, a directory or the keys themselves to an architecture.
#include <algorithm>

#include "octet/base/directory.h"
#include "octet/base/file.h"
#include "octet/base/names.h"
#include "octet/base/require.h"
#include "octet/base/system_call.h"
#include "octet/checkpoint/reader.h"
#include "octet/models/decoder/config_json.h"
#include "octet/models/registry.h"
#include "octet/train/adapter_files.h"
#include "octet/train/config.h"
#include "octet/train/config_presets.h"

namespace octet::train {
namespace {

// The keys of [model] that config.json also has.
Json architecture_keys(const ModelConfig& model) {
  Json keys = octet::to_json(to_node(model));
  keys.erase("config");
  keys.erase("init_from");
  if (model.sliding_window == 0) keys["sliding_window"] = nullptr;  // which TOML cannot say
  return keys;
}

// Returns the type of a rope_scaling; "default" if it stretches nothing.
std::string type_of(const Json& scaling) {
  for (const char* key : {"rope_type", "type"}) {
    if (scaling.contains(key) && scaling[key].is_string()) return scaling[key];
  }
  return "default";
}

// Replaces the keys of a rope_scaling by the run's keys. Keys of another type replace it as a whole.
void put_scaling(Json& scaling, Json keys) {
  const std::string before = type_of(scaling), type = keys.value("rope_type", before == "default" ? "llama3" : before);
  if (type == before) return scaling.update(keys);
  keys["rope_type"] = type;
  if (type == "llama3") {  // what is not set is as in Llama 3.1
    const Json usual = models::write_rope_scaling(kernels::RopeScalingLlama3{});
    for (const auto& [key, value] : usual.items()) {
      if (!keys.contains(key)) keys[key] = value;
    }
  }
  for (const char* kept : {"rope_theta", "partial_rotary_factor"}) {
    if (scaling.contains(kept)) keys[kept] = scaling[kept];
  }
  scaling = keys;
}

// Puts the run's keys in place of an object's, also where transformers 5 has other names that would hide them: rope_parameters
// holds theta, scaling and the rotated share, and layer_types lists the layers that have a window.
void put_keys(Json& object, const ModelConfig& model) {
  Json keys = architecture_keys(model);
  if (keys.contains("rope_scaling")) {
    const bool newer = object.contains("rope_parameters") && object["rope_parameters"].is_object();
    put_scaling(object[newer ? "rope_parameters" : "rope_scaling"], keys["rope_scaling"]);
    keys.erase("rope_scaling");
  }
  const auto put_number = [&](const char* key, const std::optional<double>& value) {
    for (const char* name : {"rope_parameters", "rope_scaling"}) {
      if (value && object.contains(name) && object[name].contains(key)) object[name][key] = *value;
    }
  };
  put_number("rope_theta", model.rope_theta);
  put_number("rope_theta", model.rotary_emb_base);
  put_number("partial_rotary_factor", model.rotary_pct);
  put_number("partial_rotary_factor", model.partial_rotary_factor);
  if (const auto types = object.find("layer_types"); types != object.end() && types->is_array()) {
    const bool begins = model.use_sliding_window && object.value("use_sliding_window", Json()) != *model.use_sliding_window;
    if (begins || model.max_window_layers) {
      object.erase(types);
    } else if (model.num_hidden_layers && *model.num_hidden_layers < static_cast<std::int64_t>(types->size())) {
      types->erase(types->begin() + *model.num_hidden_layers, types->end());
    }
  }
  object.update(keys);
}

Json model_section(std::string_view toml, const std::string& source) {
  const TomlNode root = parse_toml(toml, source);
  const TomlNode* section = root.find("model");
  demand(section, ExitCode::config, source, ": has no [model]");
  ModelConfig model;
  read_record(model, *section, {.name = source, .advise = advise_key}, "model");
  demand(model.config.empty() && model.init_from.empty(), ExitCode::config, source,
         ": its [model] names another model instead of giving an architecture");
  Json object = Json::object();
  put_keys(object, model);
  return object;
}

// Refuses a key of [model] that the family does not have: it would change nothing. Families with RoPE have rope_scaling, and all
// have a tokenizer, though neither is always written. Null stands for a key that is not there.
void check_keys(const models::DecoderConfig& decoder, const ModelConfig& model, const std::string& file) {
  const nlohmann::ordered_json known = models::family_of(decoder.family, file).write(decoder);
  const Json keys = architecture_keys(model);
  const std::string place = file.empty() ? "" : file + ": ";
  if (keys.contains("rope_scaling") && known.contains("rope_scaling")) {
    for (const auto& [key, value] : keys["rope_scaling"].items()) {
      demand(known["rope_scaling"].contains(key), ExitCode::config, place, "model.rope_scaling.", key, " = ", shown(value), ": ",
             type_of(known["rope_scaling"]), " has no such key");
    }
  }
  for (const auto& [key, value] : keys.items()) {
    const bool has =
        known.contains(key) || (key == "rope_scaling" && !decoder.learned_positions) || key == "tokenizer" || value.is_null();
    demand(has, ExitCode::config, place, "model.", key, " = ", shown(value), ": ", decoder.family, " has no such key");
  }
  if (!known.contains("use_sliding_window")) return;
  const bool wanted = model.use_sliding_window.value_or(false) && model.sliding_window != 0;
  demand(!wanted || decoder.sliding_window > 0, ExitCode::config, place,
         "model.use_sliding_window = true: needs model.sliding_window, for config.json has null");
  for (const char* key : {"sliding_window", "max_window_layers"}) {
    const Json value = keys.value(key, Json());
    demand(decoder.sliding_window > 0 || wanted || value.is_null(), ExitCode::config, place, "model.", key, " = ", shown(value),
           ": needs model.use_sliding_window = true");
  }
  std::int64_t layer = 0;
  while (layer < decoder.layers && decoder.window(layer) == 0) ++layer;
  demand(!wanted || layer < decoder.layers || model.max_window_layers, ExitCode::config, place,
         "model.use_sliding_window = true: needs model.max_window_layers below ", decoder.layers,
         ", the number of layers, for no layer has the window otherwise");
}

Json read_object(const std::filesystem::path& path) {
  Json object = read_ordered_json(path);
  demand(object.is_object(), ExitCode::data, path.string(), ": not a JSON object");
  return object;
}

// A preset, or a file.
Json named_model(const std::string& name) {
  for (const Preset& preset : presets()) {
    if (preset.name == name) return model_section(preset.toml, "configs/" + name + ".toml");
  }
  const std::filesystem::path path = name;
  if (path.extension() == ".toml") return model_section(read_file(path), name);
  if (path.extension() == ".json") return read_object(path);
  const std::vector<std::string> names = preset_names();
  demand(!is_folder(path), ExitCode::config, "model.config = \"", name, "\": this is a directory; use model.init_from");
  fail(ExitCode::config, "model.config = \"", name, "\": no such preset (", joined(names), "), and not a .toml or .json file",
       did_you_mean(name, names));
}

// Returns the model of the checkpoint from which a run continues if its model directory does not exist any more. `gone` is the
// missing file.
Json model_of_checkpoint(const Config& config, const std::filesystem::path& gone) {
  const std::string& resume = config.checkpoint.resume;
  const std::filesystem::path root = std::filesystem::path(config.run.output_dir) / "checkpoints";
  nlohmann::json meta = nlohmann::json::object();
  if (resume == "auto") {
    meta = checkpoint::newest_meta(root, config.checkpoint.retry_s);
  } else if (resume != "none") {
    const std::filesystem::path manifest = std::filesystem::path(resume) / checkpoint::kManifestName;
    meta = checkpoint::parse_manifest(read_file(manifest), manifest.string()).meta;
  }
  const bool known = meta.contains("model") && meta["model"].is_object();
  if (!known) demand_whole_model(config.model.init_from);
  demand(known, ExitCode::data, gone.string(), ": No such file. The run starts from model.init_from: ",
         resume == "auto" ? concat(root.string(), " has no checkpoint to continue from") : concat("checkpoint.resume = \"", resume, "\""));
  return meta["model"];
}

}  // namespace

bool init_from_is_gone(const Config& config) {
  const std::filesystem::path directory = config.model.init_from;
  return !directory.empty() && !path_exists(directory / "config.json");
}

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const Preset& preset : presets()) names.emplace_back(preset.name);
  std::sort(names.begin(), names.end());
  return names;
}

models::DecoderConfig decoder_config(const Config& config) {
  const ModelConfig& model = config.model;
  const auto parse = [&](Json object, const std::string& source) {
    put_keys(object, model);
    if (!object.contains("model_type")) object["model_type"] = "llama";
    const models::DecoderConfig decoder = models::parse_config(nlohmann::json(object), source);
    check_keys(decoder, model, config.file);
    return decoder;
  };
  if (!model.init_from.empty()) {
    const std::filesystem::path path = std::filesystem::path(model.init_from) / "config.json";
    if (init_from_is_gone(config)) return parse(model_of_checkpoint(config, path), config.run.output_dir);
    return parse(read_object(path), path.string());
  }
  try {
    const std::string file = config.file.empty() ? "model" : config.file + ": model";
    return model.config.empty() ? parse(Json::object(), file) : parse(named_model(model.config), file + ".config = " + model.config);
  } catch (const SystemError& error) {
    if (error.may_pass()) throw;  // not a mistake in the file, so a supervisor tries again
    fail(ExitCode::config, error.what());
  } catch (const Error& error) {
    fail(ExitCode::config, error.what());  // the run's own words, not a data set's
  }
}

}  // namespace octet::train
