#include "octet/train/adapter_files.h"

#include <cmath>
#include <limits>
#include <set>

#include "octet/base/directory.h"
#include "octet/base/file.h"
#include "octet/base/json.h"
#include "octet/base/log.h"
#include "octet/base/visible.h"
#include "octet/models/registry.h"

namespace octet::train {
namespace fs = std::filesystem;
namespace {

constexpr const char* kConfig = "adapter_config.json";
constexpr const char* kWeights = "adapter_model.safetensors";
constexpr const char* kChangedConfig = "model_config.json";
constexpr std::string_view kPrefix = "base_model.model.", kSuffix = ".lora_A.weight";

template <class T>
T value_of(const nlohmann::json& config, const char* key, const std::string& source, const char* wanted) {
  const auto found = config.find(key);
  demand(found != config.end(), ExitCode::data, source, ": no ", key);
  const bool cuts = std::is_same_v<T, std::int64_t> && found->is_number_float();  // get() would drop the fraction
  try {
    if (!cuts) return found->get<T>();
  } catch (const nlohmann::json::exception&) {  // refused below
  }
  fail(ExitCode::data, source, ": ", key, " = ", shown(*found), ": must be ", wanted);
}

// Refuses adapters that are not plain LoRA. In such an adapter, one of these keys has a value other than those listed here or
// null.
void check_supported(const nlohmann::json& config, const std::string& source) {
  const auto check = [&](const char* key, const std::vector<nlohmann::json>& allowed) {
    const nlohmann::json value = config.value(key, nlohmann::json());
    if (value.is_null() || std::find(allowed.begin(), allowed.end(), value) != allowed.end()) return;
    std::string list = allowed.empty() ? "null" : "";
    for (const nlohmann::json& one : allowed) list += (list.empty() ? "" : ", ") + one.dump();
    fail(ExitCode::data, source, ": ", key, " = ", shown(value), ": Octet reads only adapters with ", list);
  };
  check("peft_type", {"LORA"});
  check("bias", {"none"});
  check("use_dora", {false});
  check("fan_in_fan_out", {false});
  check("rank_pattern", {nlohmann::json::object()});
  check("alpha_pattern", {nlohmann::json::object()});
  check("modules_to_save", {nlohmann::json::array()});
  // Other initialisations ("pissa", "olora", "corda", "loftq") also change the weights of the model, whenever PEFT loads them.
  check("init_lora_weights", {true, false, "gaussian", "eva", "orthogonal"});
  check("lora_bias", {false});
  check("use_qalora", {false});
  check("alora_invocation_tokens", {});
  check("layer_replication", {});
}

// PEFT writes 16, not 16.0.
Json number_of(double value) {
  constexpr double kWhole = 1LL << 53;
  return std::abs(value) <= kWhole && value == std::floor(value) ? Json(static_cast<std::int64_t>(value)) : Json(value);
}

nlohmann::ordered_json config_of(models::Decoder& model, const models::Adapters& adapters, const std::string& base) {
  std::set<std::string> targets;
  for (const auto* linear : model.linears()) {
    if (!linear->adapter()) continue;
    for (const std::size_t part : linear->adapter()->options().parts) targets.insert(linear->parts()[part]);
  }
  return {{"peft_type", "LORA"},
          {"task_type", "CAUSAL_LM"},
          {"base_model_name_or_path", base},
          {"r", adapters.rank},
          {"lora_alpha", number_of(adapters.alpha)},
          {"target_modules", targets},
          {"lora_dropout", adapters.dropout.rate},
          {"bias", "none"},
          {"use_rslora", adapters.rslora},
          {"fan_in_fan_out", false},
          {"inference_mode", true}};
}

void write_changed_config(const fs::path& directory, const models::DecoderConfig& trained, const fs::path& base) {
  // An earlier part of the run may have had a different [model].
  const auto remove_old = [&] { remove_tree(directory / kChangedConfig); };
  if (base.empty()) return remove_old();
  if (path_exists(base / "config.json")) {  // else somebody has deleted it meanwhile
    std::string changes;
    for (const auto& [key, before, now] : changes_of_base(models::read_config(base), trained))
      changes += concat(changes.empty() ? "" : ", ", key, " = ", now.empty() ? "null" : now);
    if (changes.empty()) return remove_old();
    log_warning(concat((base / "config.json").string(), ": the adapter was trained with ", changes,
                       ", which PEFT will not see. Octet reads ", kChangedConfig,
                       " next to the adapter. For other programs, merge the two with `octet convert export`"));
  }
  write_file_atomically(directory / kChangedConfig, models::config_json(trained, DType::bf16).dump(2) + "\n");
}

checkpoint::OutputForm form_of_adapter() {
  return {.dtype = DType::f32, .max_shard_bytes = std::numeric_limits<std::int64_t>::max(), .file = kWeights};
}

}  // namespace

bool is_adapter(const fs::path& directory) { return path_exists(directory / kConfig); }

bool is_whole_adapter(const fs::path& directory) { return is_adapter(directory) && path_exists(directory / kWeights); }

void demand_no_run_folder(const fs::path& path) {
  if (path_exists(path / "config.json") || is_adapter(path)) return;
  for (const char* name : {"model", "adapter"}) {
    demand(!path_exists(path / name), ExitCode::data, path.string(), ": the folder of a run, not of a model; did you mean ",
           (path / name).string(), "?");
  }
}

void demand_whole_model(const fs::path& path) {
  const bool adapter = is_adapter(path) || (is_adapter(path / "adapter") && !path_exists(path / "model"));
  demand(!adapter || path_exists(path / "config.json"), ExitCode::data, path.string(),
         ": an adapter, not a whole model; export the model first: `octet convert export --checkpoint ",
         shell_word(path.string()), " --output MODEL`");
  demand_no_run_folder(path);
}

AdapterDirectory open_adapter(const fs::path& directory) {
  demand_no_run_folder(directory);
  const std::string source = (directory / kConfig).string();
  const nlohmann::json config = read_json(directory / kConfig);
  demand(config.is_object(), ExitCode::data, source, ": not a JSON object");
  check_supported(config, source);
  AdapterDirectory result{.weights = checkpoint::ModelWeights::open_file(directory / kWeights), .base = {}, .adapters = {}};
  const nlohmann::json base = config.value("base_model_name_or_path", nlohmann::json());
  if (base.is_string()) result.base = base.get<std::string>();
  models::Adapters& adapters = result.adapters;
  adapters.rank = value_of<std::int64_t>(config, "r", source, "a whole number");
  demand(adapters.rank > 0 && adapters.rank <= 1 << 20, ExitCode::data, source, ": r = ", adapters.rank,
         ": must be between 1 and ", 1 << 20);
  adapters.alpha = value_of<double>(config, "lora_alpha", source, "a number");
  adapters.rslora = config.contains("use_rslora") && value_of<bool>(config, "use_rslora", source, "true or false");
  if (config.contains("lora_dropout")) adapters.dropout.rate = value_of<double>(config, "lora_dropout", source, "a number");
  adapters.file = (directory / kWeights).string();
  for (const std::string& name : result.weights.names()) {
    if (name.starts_with(kPrefix) && name.ends_with(kSuffix))
      adapters.targets.push_back(name.substr(kPrefix.size(), name.size() - kPrefix.size() - kSuffix.size()));
  }
  demand(!adapters.targets.empty(), ExitCode::data, adapters.file, ": no tensor ", kPrefix, "MODULE", kSuffix);
  return result;
}

std::string load_adapter(Engine& engine, const fs::path& directory) {
  const AdapterDirectory from = open_adapter(directory);
  const models::Adapters& wanted = engine.options().adapters;
  const double scale = wanted.scale(), found = from.adapters.scale();
  demand(from.adapters.rank == wanted.rank, ExitCode::config, (directory / kConfig).string(), ": has rank ", from.adapters.rank,
         ", but lora.rank is ", wanted.rank, ": give --lora.rank=", from.adapters.rank);
  const auto alpha_of = [&](bool rslora) {  // that makes the scale `found`
    return found / models::Adapters{.rank = wanted.rank, .rslora = rslora}.scale();
  };
  demand(std::abs(found - scale) <= 1e-6 * std::abs(scale), ExitCode::config, (directory / kConfig).string(), ": multiplies by ",
         found, ", but lora.alpha and lora.rank say ", scale, ": give --lora.alpha=", alpha_of(false),
         ", or with lora.rslora = true ", alpha_of(true));
  checkpoint::load_weights(engine.stream(), from.weights, models::adapter_names(engine.model()));
  engine.refresh();
  return from.base;
}

std::vector<models::ConfigDifference> changes_of_base(const models::DecoderConfig& base, const models::DecoderConfig& trained) {
  std::vector<models::ConfigDifference> changes = models::config_differences(base, trained);
  if (base.tokenizer != trained.tokenizer)
    changes.push_back({"tokenizer", in_quotes(base.tokenizer), in_quotes(trained.tokenizer)});
  return changes;
}

std::optional<models::DecoderConfig> changed_config_of(const fs::path& directory) {
  const fs::path file = directory / kChangedConfig;
  if (!path_exists(file)) return std::nullopt;
  return models::parse_config(read_json(file), file.string());
}

void write_adapter(const fs::path& directory, models::Decoder& model, const models::Adapters& adapters, const AdapterBase& base,
                   const checkpoint::WholeParameter& whole) {
  make_folders(directory);
  checkpoint::save_weights(directory, models::adapter_names(model), form_of_adapter(), whole);
  // Written before the file that makes the folder an adapter. Otherwise the adapter could be read with another model.
  write_changed_config(directory, model.config(), base.directory);
  write_file_atomically(directory / kConfig, config_of(model, adapters, base.name).dump(2) + "\n");
}

void save_adapter(Engine& engine, const AdapterBase& base, const fs::path& directory) {
  const auto whole = [&](const parallel::Parameter& p) { return engine.whole(p); };
  if (engine.options().rank > 0) return checkpoint::join_save_weights(models::adapter_names(engine.model()), whole);
  write_adapter(directory, engine.model(), engine.options().adapters, base, whole);
}

}  // namespace octet::train
