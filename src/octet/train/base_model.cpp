#include "octet/train/base_model.h"

#include <algorithm>
#include <vector>

#include "octet/base/checksum.h"
#include "octet/base/directory.h"
#include "octet/base/log.h"
#include "octet/base/visible.h"
#include "octet/checkpoint/mismatch.h"
#include "octet/checkpoint/model_weights.h"
#include "octet/models/registry.h"
#include "octet/train/adapter_files.h"
#include "octet/train/convert.h"
#include "octet/train/model_files.h"

namespace octet::train {
namespace {

// Training changes every value of a weight, so the first and the last ones tell models apart. Reading all values again would take
// minutes for a large model.
constexpr std::int64_t kHashed = 1 << 14;

void add_values(RunningChecksum& sum, checkpoint::WeightReader& reader, std::int64_t begin, std::int64_t count) {
  std::vector<float> values(static_cast<std::size_t>(count));
  reader.read(begin, count, DType::f32, values.data());
  sum.update(std::as_bytes(std::span(values)));
}

// Names of files that hold weights in a form that Octet does not read, or that an interrupted download leaves behind.
const std::vector<std::string> kUnreadWeights = {"*.safetensors*", "*model*.bin", "*.pt",      "*.pth",
                                                 "*.gguf",         "*.ggml",      "*.msgpack", "*.h5"};

// Whether the model begins with weights of model.init_from. Throws as check_init_from() does.
bool has_base_weights(const Config& config) {
  const std::filesystem::path directory = config.model.init_from;
  if (directory.empty()) return false;
  if (checkpoint::has_weights(directory)) return true;
  const std::string neither = concat(directory.string(), ": neither ", checkpoint::kSingleFile, " nor ", checkpoint::kIndexFile);
  if (is_folder(directory)) {
    for (const std::filesystem::path& entry : entries_of(directory)) {
      const std::string name = entry.filename().string();
      demand(!checkpoint::glob_match_any(kUnreadWeights, name), ExitCode::data, neither, ", but ", in_quotes(name),
             ". Octet reads weights only from complete safetensors files; for weights that start at random, the directory "
             "must hold none");
    }
  }
  demand(
      !config.lora, ExitCode::data, neither,
      ". [lora] needs the weights of the model that its adapters belong to: model.init_from must name their directory, from the "
      "current directory");
  return false;
}

}  // namespace

void check_init_from(const Config& config) { has_base_weights(config); }

void begin_base(Engine& engine, const Config& config) {
  if (has_base_weights(config)) {
    load_model(engine, config.model.init_from);
    if (is_adapter(config.model.init_from))
      log_shared_warning(concat(
          config.model.init_from,
          ": holds a whole model and an adapter_config.json: model.init_from reads the model without the adapter. To begin "
          "with both, give what `octet convert export --checkpoint ",
          shell_word(config.model.init_from), " --output MODEL` writes"));
    if (!config.lora) return;
    parallel::ParameterStore& store = engine.model().parameters();
    for (const parallel::Parameter& p : store.parameters()) {
      if (!p.spec.frozen) store.initialise(engine.stream(), p, config.run.seed);
    }
    engine.refresh();
  } else {
    if (!config.model.init_from.empty()) log_info(concat(config.model.init_from, " has no weights: they start at random"));
    if (config.lora)
      log_shared_warning(
          "[lora] without model.init_from: the adapters are trained with random weights, and adapter_config.json names no "
          "model. Give model.init_from");
    engine.initialise(config.run.seed);
  }
}

void begin_model(Engine& engine, const Config& config) {
  begin_base(engine, config);
  if (!config.lora || config.lora->init_from.empty()) return;
  const std::string base = load_adapter(engine, config.lora->init_from);
  if (const auto trained = changed_config_of(config.lora->init_from)) {
    for (const auto& [key, before, now] : changes_of_base(*trained, engine.model().config())) {
      log_shared_warning(concat(config.lora->init_from, ": was trained with ", key, " = ", before.empty() ? "null" : before,
                                ", and this run has ", now.empty() ? "null" : now));
    }
  }
  // A name that is no folder here may well be that of the same model on a hub.
  if (is_folder(base) && !(is_folder(config.model.init_from) && std::filesystem::equivalent(base, config.model.init_from))) {
    log_shared_warning(concat(config.lora->init_from, ": was trained on top of ", base, ", and this run adapts ",
                              config.model.init_from.empty() ? "random weights" : config.model.init_from));
  }
}

std::string hash_of_base(const Config& config) {
  RunningChecksum sum;
  if (!has_base_weights(config)) {
    const DescribedModel described(decoder_config(config));
    sum.update(concat("random ", config.run.seed));
    for (const parallel::NameEntry& entry : described.names) {
      const parallel::ParameterSpec& spec = entry.parameter->spec;
      sum.update(concat(entry.external, entry.shape, spec.init_std, spec.init == parallel::Init::ones));
    }
    return sum.hex();
  }
  const auto weights = checkpoint::ModelWeights::open(config.model.init_from);
  for (const std::string& name : weights.names()) {
    if (const std::string fault = weights.fault_of(name); !fault.empty()) {
      // Older versions of transformers store buffers, such as a mask of booleans. The model does not use them.
      const bool unused = checkpoint::glob_match_any(models::ignorable_names(decoder_config(config)), name);
      demand(unused, ExitCode::data, config.model.init_from, ": ", fault);
      continue;
    }
    const checkpoint::TensorInfo& info = *weights.find(name);
    sum.update(concat(name, info.dtype_name, info.shape_text()));
    checkpoint::WeightReader reader(weights, name);
    const std::int64_t first = std::min(kHashed, reader.elements()), last = std::max(first, reader.elements() - kHashed);
    add_values(sum, reader, 0, first);
    add_values(sum, reader, last, reader.elements() - last);
  }
  return sum.hex();
}

void check_base(const nlohmann::json& meta, const std::string& hash, const std::string& checkpoint) {
  const std::string before = meta.value("lora_base", "");
  demand(before == hash, ExitCode::data, checkpoint, ": its adapters belong to a model with the hash ", before,
         ", and that of this run has ", hash, ": model.init_from must hold the model that the run began with");
}

}  // namespace octet::train
