#include "octet/train/setup.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>

#include "octet/base/log.h"
#include "octet/base/math.h"
#include "octet/device/cuda/cuda_device.h"
#include "octet/models/decoder/names.h"
#include "octet/models/registry.h"
#include "octet/recipes/registry.h"

namespace octet::train {
namespace {

DType dtype_of_name(const std::string& name) {
  return name == "bf16" ? DType::bf16 : name == "fp8" ? DType::f8_e4m3 : DType::f32;
}

nn::Checkpointing checkpointing_of(const std::string& mode) {
  return mode == "full" ? nn::Checkpointing::full : mode == "selective" ? nn::Checkpointing::selective : nn::Checkpointing::none;
}

// The compute capability of the GPU; Hopper's if there is none.
int capability_of(DeviceKind device) {
  const bool gpu = device == DeviceKind::cuda && cuda_is_available();
  return gpu ? cuda_properties().compute_capability : recipes::kHopper;
}

std::string describe(const QuantSpec& spec) {
  const char* tile = "";
  switch (spec.tile) {
    case ScaleTile::tensor:
      tile = spec.source == ScaleSource::history ? "tensor, delayed" : "tensor, current";
      break;
    case ScaleTile::row:
      tile = "row";
      break;
    case ScaleTile::block_1x128:
      tile = "1x128";
      break;
    case ScaleTile::block_128x128:
      tile = "128x128";
      break;
    case ScaleTile::mx_1x32:
      tile = "1x32 E8M0";
      break;
  }
  return fmt::format("{} ({})", spec.format == Fp8Format::e4m3 ? "E4M3" : "E5M2", tile);
}

}  // namespace

DeviceKind device_of(const Config& config) {
  const std::string& name = config.run.device;
  demand(name == "cpu" || name == "cuda" || name == "auto", ExitCode::config, "run.device = \"", name,
         "\": must be auto | cpu | cuda");
  return name == "cuda" || (name == "auto" && cuda_is_available()) ? DeviceKind::cuda : DeviceKind::cpu;
}

Recipe recipe_of(const Config& config, DeviceKind device) { return recipe_of(config, device, capability_of(device)); }

std::string recipe_text(const Recipe& recipe, DeviceKind device) {
  const bool emulated = recipe.is_fp8() && (device != DeviceKind::cuda || !recipes::multiplies(capability_of(device), recipe));
  return recipe.name + (emulated ? ", emulated" : "");
}

Recipe recipe_of(const Config& config, DeviceKind device, int capability) {
  const PrecisionConfig& p = config.precision;
  Recipe recipe = recipes::make_recipe(p.recipe, {.format = p.format,
                                                        .amax_history_len = p.amax_history_len,
                                                        .amax_compute_algo = p.amax_compute_algo,
                                                        .margin = p.margin,
                                                        .power_of_2 = p.power_of_2,
                                                        .amax_epsilon = p.amax_epsilon,
                                                        .accumulation = p.accumulation,
                                                        .wgrad = p.wgrad,
                                                        .head = p.head,
                                                        .attention = p.attention,
                                                        .weight_transpose_cache = p.weight_transpose_cache,
                                                        .skip = p.skip});
  recipes::check_device(recipe, device, capability, p.emulate);
  recipe.token_scales = device != DeviceKind::cuda || recipes::has_instructions(capability, ScaleTile::row);
  return recipe;
}

void warn_of_idle_preset(const Config& config) {
  const Recipe recipe = recipes::make_recipe(config.precision.recipe, {});
  const bool chooses = recipe.is_fp8() && (recipe.x.tile == ScaleTile::tensor || recipe.x.tile == ScaleTile::row);
  if (config.precision.preset != "fast" || chooses) return;
  log_shared_warning(concat("precision.preset = \"fast\" changes nothing with precision.recipe = \"", recipe.name,
                            "\", whose products accumulate in one way only"));
}

EngineOptions optimizer_options(const Config& config, const Recipe& recipe) {
  EngineOptions options;
  options.recipe = recipe;
  options.calibrates = config.precision.calibrate && recipe.delayed();
  options.deterministic = config.run.deterministic;
  options.storage.master_weights = config.optimizer.master_weights;
  options.storage.grad = dtype_of_name(config.training.grad_dtype);
  options.storage.moments = dtype_of_name(config.optimizer.state_dtype);
  options.storage.offload_slot = config.optimizer.offload ? parallel::kOffloadSlotBytes : 0;
  options.checkpointing = checkpointing_of(config.activation_checkpoint.mode);
  if (config.activation_checkpoint.layers >= 0) options.full_blocks = static_cast<int>(config.activation_checkpoint.layers);
  options.optimizer = {.beta1 = config.optimizer.betas[0],
                       .beta2 = config.optimizer.betas[1],
                       .epsilon = config.optimizer.eps,
                       .weight_decay = config.optimizer.weight_decay,
                       .max_grad_norm = config.optimizer.max_grad_norm,
                       .seed = config.run.seed};
  return options;
}

models::Adapters adapters_of(const Config& config) {
  if (!config.lora) return {};
  demand(
      !config.model.router_bias_update_rate, ExitCode::config, config.file,
      ": model.router_bias_update_rate with [lora]: the model beneath adapters is frozen, and so are the biases of its routers");
  return {.rank = config.lora->rank,
          .alpha = config.lora->alpha,
          .rslora = config.lora->rslora,
          .targets = config.lora->targets,
          .dropout = {.rate = config.lora->dropout, .seed = config.run.seed}};
}

EngineOptions engine_options(const Config& config, const Recipe& recipe) {
  return engine_options(config, recipe, decoder_config(config), adapters_of(config));
}

EngineOptions engine_options(const Config& config, const Recipe& recipe, const models::DecoderConfig& model,
                             const models::Adapters& adapters) {
  EngineOptions options = optimizer_options(config, recipe);
  options.model = model;
  options.adapters = adapters;
  demand(config.activation_checkpoint.layers <= options.model.layers, ExitCode::config, config.file,
         ": activation_checkpoint.layers = ", config.activation_checkpoint.layers, ": the model has ", options.model.layers, " layers");
  options.seq_len = config.training.seq_len;
  options.micro_batch_size = config.training.micro_batch_size;
  options.fingerprints = config.health.sdc_every > 0;
  options.document_mask = config.data.document_mask || config.data.packing == "documents";
  demand(options.seq_len <= options.model.max_position, ExitCode::config, config.file, ": training.seq_len = ", options.seq_len,
         " is beyond the model's max_position_embeddings = ", options.model.max_position,
         ": lower training.seq_len, or raise model.max_position_embeddings");
  const std::int64_t context = config.parallel.context, sequences = options.micro_batch_size;
  const std::int64_t tokens = sequences * options.seq_len / context, multiple = recipes::token_multiple(recipe);
  const std::int64_t least = multiple * context, longest = options.model.max_position / least * least;
  demand(tokens % multiple == 0, ExitCode::config, config.file, ": training.seq_len = ", options.seq_len, ": ", recipe.name,
         " multiplies tokens by multiples of ", multiple, ", but training.micro_batch_size x training.seq_len",
         context > 1 ? " / parallel.context" : "", " is ", sequences, " x ", options.seq_len,
         context > 1 ? concat(" / ", context) : "", " = ", tokens,
         ": give --training.seq_len=", std::min(round_up(options.seq_len, least), longest));
  return options;
}

kernels::GemmTuning gemm_tuning() {
  namespace fs = std::filesystem;
  kernels::GemmTuning tuning;
  const char *cache = std::getenv("XDG_CACHE_HOME"), *home = std::getenv("HOME");
  const fs::path folder = cache && *cache ? fs::path(cache) : home && *home ? fs::path(home) / ".cache" : fs::path();
  std::error_code error;
  if (!folder.empty() && (fs::create_directories(folder / "octet", error), !error))
    tuning.cache_file = folder / "octet" / "gemm.json";
  tuning.progress = [](int done, int total) {
    if (done == 0 || done == total) log_info(concat("choosing algorithms of matrix products: ", done, " of ", total));
  };
  return tuning;
}

parallel::Layout layout_of(const Config& config, const parallel::Mesh& mesh) {
  const ParallelConfig first = layouts_allowed(config, mesh).front().parallel;
  return {.mesh = mesh,
          .weights = first.reshard_after_forward == "true" ? parallel::Weights::resharded : parallel::Weights::kept,
          .gradients = first.gradients == "sharded" ? parallel::Gradients::sharded : parallel::Gradients::whole,
          .reduce = config.training.reduce_dtype == "bf16" ? DType::bf16 : DType::f32,
          .accumulates = accumulation_of(config, mesh.data_coordinates()) > 1,
          .lanes = static_cast<int>(config.parallel.expert_lanes)};
}

std::vector<Config> layouts_allowed(const Config& config, const parallel::Mesh& mesh) {
  const auto allows = [](const std::string& given, const char* value) { return given == "auto" || given == value; };
  const int parts = mesh.size({parallel::Axis::shard, parallel::Axis::context});
  std::vector<Config> layouts;
  for (const parallel::Kept& kept : parallel::kept_order(parts, accumulation_of(config, mesh.data_coordinates()))) {
    const char* const reshard = kept.weights == parallel::Weights::resharded ? "true" : "false";
    const char* const gradients = kept.gradients == parallel::Gradients::sharded ? "sharded" : "whole";
    const ParallelConfig& given = config.parallel;
    if (!allows(given.reshard_after_forward, reshard) || !allows(given.gradients, gradients)) continue;
    Config& layout = layouts.emplace_back(config);
    layout.parallel.reshard_after_forward = reshard;
    layout.parallel.gradients = gradients;
  }
  if (parts == 1) layouts.resize(1);
  return layouts;
}

data::DatasetOptions dataset_options(const Config& config, std::int64_t vocab) {
  data::DatasetOptions options;
  for (const SourceConfig& source : config.data.source) {
    const data::Use use = source.split == "validation" ? data::Use::validation
                          : source.split == "train"    ? data::Use::train
                                                       : data::Use::unnamed;
    options.sources.push_back({.path = source.path, .weight = source.weight, .use = use});
  }
  options.seq_len = config.training.seq_len;
  options.seed = config.run.seed;
  options.split = config.data.split;
  options.split_by = config.data.split_by == "windows" ? data::SplitBy::windows : data::SplitBy::documents;
  options.vocab_size = vocab;
  options.packing = config.data.packing == "documents" ? data::Packing::documents : data::Packing::stream;
  options.retry_s = config.checkpoint.retry_s;
  options.mask = config.training.mask ? data::Corpus::Mask::read : data::Corpus::Mask::ignored;
  return options;
}

std::int64_t accumulation_of(const Config& config, std::int64_t coordinates) {
  return config.training.global_batch_size / (config.training.micro_batch_size * coordinates);
}

std::string precision_table(models::Decoder& model) {
  struct Kind {
    std::string shape, precision;
    int layers = 0;
  };
  std::vector<std::pair<std::string, Kind>> kinds;
  std::size_t width = 0;
  for (const auto* linear : model.linears()) {
    const Recipe& recipe = model.recipe();
    std::string precision = linear->compute() == Compute::fp32 ? "FP32" : "BF16";
    if (linear->is_fp8()) {
      precision = fmt::format("X {}  W {}  G {}{}", describe(recipe.x), describe(recipe.w), describe(recipe.g),
                              recipe.wgrad_bf16 ? "  wgrad BF16" : "");
    }
    // Layers of a kind, and experts, share a line, except those that `skip` leaves in another precision.
    std::string name = recipes::skip_pattern(models::kind_pattern(model, linear->name()));
    const auto same = std::find_if(kinds.begin(), kinds.end(),
                                   [&](const auto& kind) { return kind.first == name && kind.second.precision == precision; });
    if (same == kinds.end()) {
      const Shape shape = linear->weight().cut.global();
      kinds.push_back({name, {.shape = fmt::format("[{}, {}]", shape[0], shape[1]), .precision = precision, .layers = 1}});
      width = std::max(width, name.size());
    } else {
      ++same->second.layers;
    }
  }
  std::string table;
  std::size_t digits = 3;
  for (const auto& [name, kind] : kinds) digits = std::max(digits, std::to_string(kind.layers).size());
  for (const auto& [name, kind] : kinds) {
    table += fmt::format("  {:<{}}  {:>14}  x{:<{}} {}\n", name, width, kind.shape, kind.layers, digits, kind.precision);
  }
  return table;
}

}  // namespace octet::train
