#include "octet/train/restore.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "octet/base/directory.h"
#include "octet/base/math.h"
#include "octet/base/names.h"
#include "octet/base/retry.h"
#include "octet/base/visible.h"
#include "octet/checkpoint/steps.h"
#include "octet/kernels/cross_entropy/cross_entropy.h"
#include "octet/models/registry.h"
#include "octet/recipes/registry.h"
#include "octet/train/adapter_files.h"
#include "octet/train/base_model.h"
#include "octet/train/entries.h"
#include "octet/train/fetch.h"
#include "octet/train/model_files.h"
#include "octet/train/setup.h"

namespace octet::train {
namespace {

namespace fs = std::filesystem;

bool is_checkpoint(const fs::path& path) { return path_exists(path / checkpoint::kManifestName); }

bool divides_sources(const Config& config) {
  const auto& sources = config.data.source;
  return config.data.split[1] > 0 &&
         std::none_of(sources.begin(), sources.end(), [](const SourceConfig& s) { return s.split == "validation"; });
}

// Like model_at(), but returns nothing for a path that is neither checkpoint, model nor run.
std::optional<fs::path> find_model_at(const fs::path& path) {
  const fs::path checkpoints = path / "checkpoints", model = path / "model", adapter = path / "adapter";
  if (is_checkpoint(path) || is_adapter(path) || path_exists(path / "config.json")) return path;
  for (const checkpoint::StepDirectory& found : checkpoint::find_checkpoints(checkpoints))
    if (is_checkpoint(found.path)) return found.path;
  if (path_exists(model / "config.json")) return model;
  if (is_adapter(adapter)) return adapter;
  demand(!path_exists(path / "run.json") && !path_exists(checkpoints), ExitCode::data, path.string(),
         ": this run has no checkpoint and no model yet");
  return std::nullopt;
}

}  // namespace

std::int64_t restore_weights(Engine& engine, const Config& config, const checkpoint::Reader& reader) {
  const std::string recipe = reader.meta().value("recipe", "");
  demand(recipe == engine.model().recipe().name, ExitCode::config, reader.path().string(), ": made with recipe ", recipe,
         ", but precision.recipe = ", engine.model().recipe().name);
  if (config.lora) {
    check_base(reader.meta(), hash_of_base(config), reader.path().string());
    begin_base(engine, config);
  }
  reader.load(engine.stream(), read_entries(engine.model().parameters(), engine.model().scales(), nullptr),
              {"*.moment1", "*.moment2", "*.moment1_scale", "*.moment2_scale", "optimizer.updates"});
  engine.refresh();
  return reader.step();
}

void skip_demoted(Config& config, const checkpoint::Reader& reader) {
  const auto demoted = reader.meta().value("demoted", std::vector<std::string>());
  config.precision.skip.insert(config.precision.skip.end(), demoted.begin(), demoted.end());
}

void check_split(const checkpoint::Reader& reader, const Config& config) {
  const nlohmann::json run = reader.meta().value("config", nlohmann::json::object());
  const std::string before = run.value("data", nlohmann::json::object()).value("split_by", "windows");
  demand(before == config.data.split_by || !divides_sources(config), ExitCode::config, reader.path().string(),
         ": its run held out ", before, ", and data.split_by = \"", config.data.split_by,
         "\" would hold out text that it was trained on; give --data.split_by=", before);
}

void demand_one(const fs::path& path, const char* wanted) {
  demand(path_exists(path), ExitCode::data, path.string(), ": no such folder; give ", wanted);
  demand(is_folder(path), ExitCode::data, path.string(), ": not a folder; give ", wanted);
  if (path_exists(path / "run.json")) return;
  std::string runs;
  fs::path last;
  for (const fs::path& entry : entries_of(path)) {
    if (!path_exists(entry / "run.json")) continue;
    runs += (runs.empty() ? "" : ", ") + entry.filename().string();
    last = entry;
  }
  demand(runs.empty(), ExitCode::data, path.string(), ": holds several runs: ", runs, "; give one of them, such as ",
         last.string());
}

fs::path model_at(const fs::path& path) {
  if (const auto found = find_model_at(path)) return *found;
  demand_one(path, "a model directory, a checkpoint or the folder of a run");
  return path;
}

std::string checkpoint_to_resume(const CheckpointConfig& config) {
  const std::vector<std::string> words = {"auto", "none"};
  if (std::find(words.begin(), words.end(), config.resume) != words.end()) return config.resume;
  constexpr const char* kGive = "; give auto, none, the folder of a checkpoint, or that of a run for its newest one";
  demand(!config.resume.empty(), ExitCode::config, "checkpoint.resume is empty", kGive);
  return retry(config.retry_s, [&] {
    const std::string given = concat("checkpoint.resume = ", in_quotes(config.resume), ": ");
    demand(path_exists(config.resume), ExitCode::data, given, "no such folder", kGive, did_you_mean(config.resume, words));
    const fs::path checkpoint = find_model_at(config.resume).value_or(config.resume);
    demand(is_checkpoint(checkpoint), ExitCode::data, given, checkpoint.string(), " is not a checkpoint, for it has no ",
           checkpoint::kManifestName, kGive);
    return checkpoint.string();
  });
}

fs::path checkpoint_at(const fs::path& path, const char* option) {
  const fs::path checkpoint = find_model_at(path).value_or(path);
  if (checkpoint == path) demand_one(path, "a checkpoint or the folder of a run");
  demand(is_checkpoint(checkpoint), ExitCode::data, checkpoint.string(), ": not a checkpoint, for it has no ",
         checkpoint::kManifestName, "; ", option,
         " takes RUN/checkpoints/step-N, or RUN for its newest checkpoint; --model takes model directories and adapters");
  return checkpoint;
}

fs::path exported_model_at(const fs::path& path) {
  if (is_adapter(path) || path_exists(path / "config.json")) return path;
  demand_one(path, "a model directory or the folder of a run");
  if (!path_exists(path / "run.json")) return path;
  for (const char* name : {"model", "adapter"}) {
    if (path_exists(path / name)) return path / name;
  }
  fail(ExitCode::data, path.string(), ": this run has no model yet; `octet convert export --checkpoint ",
       shell_word(path.string()), "` writes one from its newest checkpoint");
}

models::DecoderConfig config_of_model(const fs::path& path) {
  if (!is_checkpoint(path)) return find_model(path).config;
  return models::parse_config(checkpoint::meta_of(path).value("model", nlohmann::json()),
                              (path / checkpoint::kManifestName).string());
}

std::unique_ptr<Engine> open_model(const fs::path& path, DeviceKind device, std::int64_t max_tokens) {
  EngineOptions options;
  options.storage.training = false;
  options.whole_logits = true;
  const auto make = [&] {
    const std::int64_t multiple = recipes::token_multiple(options.recipe);
    const std::int64_t longest = options.model.max_position;
    options.seq_len =
        std::max(multiple, std::min(round_up(std::min(max_tokens, longest), multiple), longest / multiple * multiple));
    return std::make_unique<Engine>(options, device);
  };
  if (!is_checkpoint(path)) {
    const ModelDirectory from = find_model(path);
    options.model = from.config;
    options.adapters = from.adapters;
    options.recipe = recipes::make_recipe("bf16", {});
    auto engine = make();
    load_model(*engine, from);
    return engine;
  }
  const checkpoint::Reader reader = checkpoint::Reader::open(path);
  const std::string source = (path / "manifest.json").string();
  Config config = parse_config(reader.meta().value("toml", ""), source);
  if (config.lora) fetch_base(config);
  options.model = models::parse_config(reader.meta().value("model", nlohmann::json()), source);
  options.adapters = adapters_of(config);
  options.recipe = recipe_of(config, device);
  options.storage.master_weights = config.optimizer.master_weights;
  auto engine = make();
  restore_weights(*engine, config, reader);
  return engine;
}

double evaluate(Engine& engine, const data::Dataset& dataset, std::int64_t sequences) {
  const std::int64_t count = std::min(sequences, dataset.held_out_samples());
  const std::int64_t length = dataset.seq_len(), rows = engine.options().micro_batch_size;
  const parallel::Mesh& mesh = engine.options().layout.mesh;
  const std::int64_t coordinate = mesh.data_coordinate(engine.options().rank), coordinates = mesh.data_coordinates();
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(rows * length)), targets(tokens.size()), starts;
  double loss = 0, weight = 0;
  for (std::int64_t dealt = 0; dealt < count; dealt += rows * coordinates) {
    const std::int64_t begin = std::min(count, dealt + coordinate * rows), end = std::min(count, begin + rows);
    const bool none = begin == end;  // all ranks must take part, so this rank evaluates a row without targets
    starts.clear();
    for (std::int64_t i = begin; i < end || (none && i == begin); ++i) {
      const auto offset = static_cast<std::size_t>((i - begin) * length), width = static_cast<std::size_t>(length);
      dataset.held_out_sample(
          none ? 0 : i, count,
          {.tokens = std::span(tokens).subspan(offset, width), .targets = std::span(targets).subspan(offset, width)}, starts,
          static_cast<std::int32_t>(offset));
    }
    const auto used = static_cast<std::size_t>((none ? 1 : end - begin) * length);
    if (none) std::fill_n(targets.begin(), used, kernels::kIgnoredTarget);
    const std::array<double, 2> total = engine.evaluate(std::span(tokens).first(used), std::span(targets).first(used), starts);
    loss += total[0];
    weight += total[1];
  }
  return weight > 0 ? loss / weight : std::numeric_limits<double>::quiet_NaN();
}

}  // namespace octet::train
