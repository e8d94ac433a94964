// `octet advise`: what each recipe costs a run, and which one it should take.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "octet/app/advise.h"
#include "octet/app/ceilings.h"
#include "octet/app/commands.h"
#include "octet/app/fetched.h"
#include "octet/app/threads.h"
#include "octet/base/directory.h"
#include "octet/base/log.h"
#include "octet/base/names.h"
#include "octet/device/cuda/cuda_device.h"
#include "octet/recipes/registry.h"
#include "octet/telemetry/jsonl.h"
#include "octet/train/restore.h"
#include "octet/train/setup.h"
#include "octet/train/trainer.h"

namespace octet::app {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kH200MemoryBytes = std::size_t{139} << 30;

constexpr const char* kRecipes[] = {"bf16", "fp8_delayed", "fp8_current", "fp8_rowwise", "fp8_block"};

std::vector<telemetry::HealthSample> read_health(const fs::path& given, std::string& path) {
  const fs::path file = is_folder(given) ? given / "fp8_health.jsonl" : given;
  if (!path_exists(file)) train::demand_one(given, "the folder of a run, or its fp8_health.jsonl");
  path = file.string();
  auto health = telemetry::read_jsonl<telemetry::HealthSample>(file);
  demand(!health.records.empty(), ExitCode::data, path, ": has no health samples");
  if (health.broken_lines > 0) log_warning(concat(path, ": ", health.broken_lines, " broken lines passed over"));
  return std::move(health.records);
}

void check_layers(const std::vector<telemetry::HealthSample>& samples, models::Decoder& model, const std::string& path) {
  std::vector<std::string> tensors;
  for (const auto* linear : model.linears()) {
    for (const char* operand : {".x", ".w", ".g"}) tensors.push_back(linear->name() + operand);
  }
  const std::set<std::string> known(tensors.begin(), tensors.end());
  for (const telemetry::HealthSample& sample : samples) {
    const std::size_t name = sample.tensor.rfind('.');
    if (!sample.of_linear() || telemetry::is_of_attention(std::string_view(sample.tensor).substr(0, name))) continue;
    demand(known.count(sample.tensor) > 0, ExitCode::data, path, ": tensor \"", sample.tensor,
           "\": this model has no such linear layer", did_you_mean(sample.tensor, tensors));
  }
}

// Predictions and the memory plan are for a GPU, whatever machine makes them.
train::Config config_for(const train::Config& config, const std::string& recipe) {
  train::Config result = config;
  result.run.device = "cuda";
  result.precision.recipe = recipe;
  result.precision.attention = "bf16";  // linears alone are compared
  return result;
}

// Returns the lines of other keys that the run must change together with the recipe, because the recipe refuses them.
std::string keys_beside(const std::string& recipe, const train::Config& config) {
  std::string lines;
  if (recipe != "fp8_delayed" && config.precision.attention != "bf16") lines += "attention = \"bf16\"\n";
  if (recipe == "bf16" && config.anomaly.remedy == "demote") lines += "\n[anomaly]\nremedy = \"rollback\"\n";
  return lines;
}

plan::LinearSetting setting_of(const train::Config& config, const train::EngineOptions& options) {
  parallel::Storage storage = options.storage;
  storage.offload_slot = 0;  // linears alone are compared
  return {.model = options.model,
          .batch = options.micro_batch_size,
          .seq_len = options.seq_len,
          .micro_batches = train::accumulation_of(config),
          .storage = storage};
}

// The linears that FP8 represents badly, each once. The experts of a layer have one precision, so they have one pattern.
std::vector<std::string> kept_in_bf16(const Advice& advice) {
  std::vector<std::string> result;
  for (const std::string& layer : telemetry::layers_of(advice.findings)) {
    const std::string pattern = recipes::skip_pattern(layer);
    if (std::find(result.begin(), result.end(), pattern) == result.end()) result.push_back(pattern);
  }
  return result;
}

class Adviser {
 public:
  // `stream` belongs to the GPU that measures; null without one.
  Adviser(const train::Config& config, Stream* stream) : config_(config), stream_(stream) {}

  void add(Advice& advice, const std::string& recipe_name) const {
    AdvisedRecipe result{.name = recipe_name};
    try {
      const train::Config config = config_for(config_, recipe_name);
      const Recipe recipe = train::recipe_of(config, DeviceKind::cuda);
      models::Decoder model(advice.setting.model, recipe, {}, {}, {}, 0, train::adapters_of(config));
      result.fp8_layers = plan::fp8_layers(model, advice.kinds);
      result.healthy_layers = plan::fp8_layers(model, advice.kinds, kept_in_bf16(advice));
      result.memory_bytes = train::measure_run(config).total();
      const Recipe bf16 = recipes::make_recipe("bf16", {});
      for (const plan::LinearKind& kind : advice.kinds) {
        add_linear(result, kind, kind.quantisable ? recipe : bf16, advice.setting);
      }
    } catch (const Error& error) {  // only about this recipe: the run's own one has been accepted
      if (error.code() != ExitCode::config || recipe_name == "bf16") throw;
      result = {.name = recipe_name, .refusal = error.what()};
    }
    advice.recipes.push_back(std::move(result));
  }

 private:
  void add_linear(AdvisedRecipe& result, const plan::LinearKind& kind, const Recipe& recipe,
                  const plan::LinearSetting& setting) const {
    constexpr plan::Machine kH200{.flops = ceiling_flops, .copy_bytes_per_s = kH200CopyBytesPerSecond};
    const plan::LinearOps ops = plan::count_linear(kind, recipe, setting);
    result.predicted.push_back(plan::predicted_time(kH200, ops, kind, recipe, setting));
    if (!stream_) return;
    log_info(concat("measuring ", kind.name, " in ", recipe.name));
    result.measured.push_back(measure_linear(*stream_, kind, recipe, setting, ops));
  }

  const train::Config& config_;
  Stream* stream_;
};

}  // namespace

int run_advise(const AdviseArgs& args) {
  if (args.json) set_log(Log::warnings);
  const train::Config config = load_run(args.run, train::Fetch::architecture);
  train::check_config(config);
  use_threads(config);
  train::Config measuring;
  measuring.run.device = args.device;
  std::unique_ptr<Device> device;
  if (train::device_of(measuring) == DeviceKind::cuda) device = make_device(DeviceKind::cuda);
  const std::unique_ptr<Stream> stream = device ? device->make_stream() : nullptr;

  // As the run itself would be refused.
  const Recipe own = train::recipe_of(config, DeviceKind::cpu);
  const train::EngineOptions options = train::engine_options(config, own);
  models::Decoder model(options.model, own, {}, {}, {}, 0, options.adapters);
  Advice advice{.run = config.run.name,
                .gpu = stream ? cuda_properties().name : "",
                .gpu_memory_bytes = stream ? cuda_properties().memory_bytes : kH200MemoryBytes,
                .head = config.precision.head,
                .setting = setting_of(config, options)};
  advice.kinds = plan::linear_kinds(model);
  if (!args.health.empty()) {
    advice.health.emplace();
    const auto samples = read_health(args.health, *advice.health);
    check_layers(samples, model, *advice.health);
    advice.findings = telemetry::find_unhealthy(samples);
  }

  const Adviser adviser(config, stream.get());
  for (const char* recipe : kRecipes) adviser.add(advice, recipe);
  std::vector<plan::Candidate> candidates;
  for (const AdvisedRecipe& recipe : advice.recipes) {
    if (recipe.refusal.empty()) candidates.push_back(recipe.candidate());
  }
  const auto memory_of = [&](const std::string& recipe, const std::vector<std::string>& skip) {
    train::Config advised = config_for(config, recipe);
    advised.precision.skip = skip;
    return train::measure_run(advised).total();
  };
  advice.recommendation = plan::recommend(advice.kinds, candidates, config.precision.skip, kept_in_bf16(advice), memory_of);
  advice.recommendation.toml += keys_beside(advice.recommendation.recipe, config);
  fmt::print("{}", args.json ? advice_json(advice) : advice_text(advice));
  return 0;
}

}  // namespace octet::app
