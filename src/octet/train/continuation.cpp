#include "octet/train/continuation.h"

#include <algorithm>
#include <set>

#include "octet/base/require.h"
#include "octet/models/registry.h"
#include "octet/recipes/registry.h"
#include "octet/telemetry/format.h"
#include "octet/train/convert.h"
#include "octet/train/history.h"
#include "octet/train/restore.h"
#include "octet/train/sources.h"

namespace octet::train {
namespace {

constexpr std::string_view kNames[] = {"recipe", "seed", "seq_len", "batch", "data", "model"};

// Returns the name in checkpoint.allow of a key whose values must agree, or "". Keys of [data] are compared by their meaning.
std::string_view name_of_key(const std::string& key, bool quantises) {
  if (key == "precision.recipe" || key == "optimizer.master_weights" || key == "optimizer.state_dtype") return "recipe";
  // These settings say how, not what, the recipe computes.
  const bool same_numbers = key == "precision.calibrate" || key == "precision.reduce_amax" || key == "precision.emulate" ||
                            key == "precision.weight_transpose_cache";
  if (key.starts_with("precision.") && quantises && !same_numbers) return "recipe";
  if (key == "run.seed") return "seed";
  if (key == "training.seq_len") return "seq_len";
  if (key == "training.global_batch_size") return "batch";
  if (key == "data.packing") return "data";
  if (key == "data.document_mask") return "model";  // what a token sees
  return "";
}

// Returns whether a setting belongs to the training. The sections of the other settings say where a run works, what it saves and
// how it is watched.
bool is_of_training(const std::string& key) {
  constexpr std::string_view kOthers[] = {"run.", "checkpoint.", "metrics.", "health.", "comm."};
  return std::none_of(std::begin(kOthers), std::end(kOthers), [&](std::string_view section) { return key.starts_with(section); });
}

nlohmann::json section(const nlohmann::json& config, const char* name) { return config.value(name, nlohmann::json::object()); }

nlohmann::json config_of(const nlohmann::json& meta) { return section(meta, "config"); }

std::vector<Change> changes_of_keys(const nlohmann::json& meta, const Config& config) {
  const std::vector<Difference> all = differences(Json(config_of(meta)), config);
  const bool other = std::any_of(all.begin(), all.end(), [](const Difference& d) { return d.key == "precision.recipe"; });
  const bool quantises = other || recipes::make_recipe(config.precision.recipe, {}).is_fp8();
  const bool packs = config.data.packing == "documents";  // which masks documents whatever data.document_mask says
  std::vector<Change> result;
  for (const std::string_view name : kNames) {
    for (const Difference& d : all) {
      if (packs && d.key == "data.document_mask") continue;
      if (name_of_key(d.key, quantises) == name) result.push_back({name, d});
    }
  }
  return result;
}

std::string text_of_split(const nlohmann::json& data) {
  const auto [train, held_out] = data.value("split", DataConfig{}.split);
  return concat("[", train, ", ", held_out, "]");
}

// Compares data.split and weights by their keys, and other changes of a source by the whole source.
std::vector<Change> changes_of_data(const nlohmann::json& meta, const Config& config, const data::Dataset& dataset) {
  const nlohmann::json data_before = section(config_of(meta), "data"), data_now = nlohmann::json(to_json(config)).at("data");
  const auto before = training_sources(data_before, meta.value("sources", nlohmann::json()));
  const auto now = training_sources(data_now, sources_json(dataset));
  std::vector<Change> result;
  const std::string split_before = text_of_split(data_before), split_now = text_of_split(data_now);
  bool split_differs = false;
  for (std::size_t i = 0; i < std::max(before.size(), now.size()); ++i) {
    if (i < before.size() && i < now.size()) {
      TrainingSource source = before[i];
      source.weight = now[i].weight;
      if (split_before != split_now) source.share = now[i].share;
      if (same_text(source, now[i])) {
        split_differs = split_differs || before[i].share != now[i].share;
        if (before[i].weight != now[i].weight) {
          result.push_back({"data",
                            {.key = concat("data.source.", now[i].number, ".weight"),
                             .before = concat(before[i].weight),
                             .now = concat(now[i].weight)}});
        }
        continue;
      }
    }
    const std::size_t number = i < now.size() ? now[i].number : before[i].number;
    result.push_back({"data",
                      {.key = concat("data.source.", number),
                       .before = i < before.size() ? before[i].text() : "",
                       .now = i < now.size() ? now[i].text() : ""}});
  }
  if (split_differs) result.insert(result.begin(), {"data", {.key = "data.split", .before = split_before, .now = split_now}});
  return result;
}

// "a is 1 there and 2 here; b is 3 there and 4 here"
std::string text_of(const std::vector<Change>& changes, std::string_view allow) {
  std::string text;
  for (const Change& change : changes) {
    const auto& [key, before, now] = change.difference;
    if (change.allow == allow)
      text += concat(text.empty() ? "" : "; ", key, " is ", in_words(before), " there and ", in_words(now), " here");
  }
  return text;
}

// "NAME [2, 3]" of the first weight that only one of the models has in this shape, or "".
std::string unfit_weight(const models::DecoderConfig& before, const models::DecoderConfig& now) {
  const auto weights = [](const models::DecoderConfig& config) {
    std::vector<std::string> texts;
    for (const parallel::NameEntry& entry : DescribedModel(config).names)
      texts.push_back(concat(entry.external, " ", entry.shape));
    return texts;
  };
  const std::vector<std::string> there = weights(before), here = weights(now);
  for (const auto& [some, others] : {std::pair(&here, &there), std::pair(&there, &here)}) {
    const std::set<std::string> known(others->begin(), others->end());
    for (const std::string& weight : *some) {
      if (!known.contains(weight)) return weight;
    }
  }
  return "";
}

constexpr const char* kBeginAnew =
    "To begin a new run, give another run.output_dir, or --resume=none --run.set_aside=true, which moves the earlier run to "
    "history/ in the same folder";

// The architecture, whether a preset or keys describe it. Throws Error{data} if weights have other shapes, because no weight fits
// then, whatever is allowed; `remedy` is the end of the message.
std::vector<Change> changes_of_model(const nlohmann::json& meta, const Config& config, const std::string& checkpoint,
                                     const char* remedy) {
  const nlohmann::json model = section(meta, "model");
  if (model.empty()) return {};
  // These limit sequences, or weigh and print what routers do. Whether there are biases of experts is another matter.
  constexpr std::string_view kMayChange[] = {"max_position_embeddings", "output_router_logits", "router_aux_loss_coef",
                                             "router_bias_update_rate", "router_z_loss_coef"};
  const models::DecoderConfig there = models::parse_config(model, "the checkpoint's model"), here = decoder_config(config);
  std::vector<Change> result;
  for (auto& [key, before, now] : models::config_differences(there, here)) {
    const bool named = std::find(std::begin(kMayChange), std::end(kMayChange), key) != std::end(kMayChange);
    const bool appears = key == "router_bias_update_rate" && before.empty() != now.empty();
    if (!named || appears) result.push_back({"model", {.key = "model." + key, .before = before, .now = now}});
  }
  const std::string unfit = result.empty() ? "" : unfit_weight(there, here);
  demand(unfit.empty(), ExitCode::data, checkpoint, ": ", text_of(result, "model"),
         "; a run goes on with the weights that it began with, and only one of the models has ", unfit, ". ", remedy);
  return result;
}

// Throws unless all changes are allowed.
void check_allowed(const std::vector<Change>& changes, const std::vector<std::string>& allow, const std::string& checkpoint) {
  const auto allowed = [&](std::string_view name) { return std::find(allow.begin(), allow.end(), name) != allow.end(); };
  std::string refused, names;
  for (const std::string_view name : kNames) {
    const bool wanted = train::changes(changes, name);
    if (wanted || allowed(name)) names += (names.empty() ? "" : ",") + std::string(name);
    if (wanted && !allowed(name)) refused += concat(refused.empty() ? "" : "; ", text_of(changes, name));
  }
  demand(refused.empty(), ExitCode::config, checkpoint, ": ", refused,
         ". To go on with the change give --checkpoint.allow=", names);
}

// Adapters of another shape or scale are not those that were trained. Dropout may change, as a learning rate may.
void check_same_adapters(const nlohmann::json& meta, const Config& config, const std::string& checkpoint) {
  for (const auto& [key, before, now] : differences(Json(config_of(meta)), config)) {
    const bool may_change = key == "lora.init_from" || key == "lora.dropout";
    demand(key != "lora" && (!key.starts_with("lora.") || may_change), ExitCode::config, checkpoint, ": ", key, " is ",
           in_words(before), " there and ", in_words(now), " here; a run goes on with the adapters that it began with");
  }
}

// Moments in FP8 are codes with scales, to which no other type can be converted.
void check_same_moments(const std::vector<Change>& all, const std::string& checkpoint) {
  for (const auto& [name, d] : all) {
    const bool fp8 = d.before.find("fp8") != std::string::npos || d.now.find("fp8") != std::string::npos;
    demand(
        d.key != "optimizer.state_dtype" || !fp8, ExitCode::config, checkpoint, ": ", d.key, " is ", in_words(d.before),
        " there and ", in_words(d.now),
        " here; moments in FP8 cannot become others, and others cannot become them. Keep the value, or export the weights with "
        "`octet convert export` and begin a new run with model.init_from");
  }
}

std::vector<data::Stretch> stretches_of(const nlohmann::json& meta) {
  std::vector<data::Stretch> result;
  for (const nlohmann::json& stretch : meta.value("stretches", nlohmann::json::array())) {
    result.push_back({.seq_len = stretch.at("seq_len").get<std::int64_t>(),
                      .seed = stretch.at("seed").get<std::uint64_t>(),
                      .samples = stretch.at("samples").get<std::int64_t>()});
    demand(result.back().seq_len >= 1 && result.back().samples >= 0, ExitCode::data, "stretches: ", stretch.dump());
  }
  return result;
}

}  // namespace

void check_model(const checkpoint::Reader& reader, const Config& config) {
  const std::string where = reader.path().string();
  const char* const remedy = "Evaluate it with the configuration of its own run";
  check_allowed(changes_of_model(reader.meta(), config, where, remedy), config.checkpoint.allow, where);
  check_same_adapters(reader.meta(), config, where);
}

std::string why_not_continued(const Config& config) {
  const std::filesystem::path folder = config.run.output_dir;
  const std::string checkpoints = (folder / "checkpoints").string();
  try {
    if (config.checkpoint.resume == "none" && !config.run.set_aside) {
      const History history = history_of(folder, 0);
      return history.empty() ? "" : why_in_the_way(folder, history, config.checkpoint.resume);
    }
    if (config.checkpoint.resume != "auto") return "";
    const nlohmann::json meta = checkpoint::newest_meta(checkpoints, 0);
    if (meta.empty()) return "";
    std::vector<Change> all = changes_of_keys(meta, config);
    for (Change& change : changes_of_model(meta, config, checkpoints, kBeginAnew)) all.push_back(std::move(change));
    check_same_moments(all, checkpoints);
    check_allowed(all, config.checkpoint.allow, checkpoints);
    check_same_adapters(meta, config, checkpoints);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

std::vector<Change> changes_since(const nlohmann::json& meta, const Config& config, const data::Dataset& dataset,
                                  const std::string& checkpoint) {
  std::vector<Change> result = changes_of_keys(meta, config);
  for (Change& change : changes_of_data(meta, config, dataset)) result.push_back(std::move(change));
  for (Change& change : changes_of_model(meta, config, checkpoint, kBeginAnew)) result.push_back(std::move(change));
  return result;
}

bool changes(const std::vector<Change>& all, std::string_view allow) {
  return std::any_of(all.begin(), all.end(), [&](const Change& change) { return change.allow == allow; });
}

bool changes_scales(const std::vector<Change>& all) {
  return std::any_of(all.begin(), all.end(),
                     [](const Change& change) { return change.difference.key.starts_with("precision."); });
}

bool changes_losses(const std::vector<Change>& all) {
  return std::any_of(all.begin(), all.end(), [](const Change& change) { return change.difference.key != "precision.skip"; });
}

Continuation continue_from(const checkpoint::Reader& reader, const Config& config, data::Dataset& dataset) {
  const nlohmann::json& meta = reader.meta();
  const std::string where = reader.path().string();
  Continuation result{.step = reader.step(),
                      .changes = changes_since(meta, config, dataset, where),
                      .stretches = stretches_of(meta),
                      .cursor = meta.at("cursor").get<std::int64_t>(),
                      .record = meta.value("changes", nlohmann::json::array())};
  const auto has = [&](std::string_view name) { return changes(result.changes, name); };
  const bool allows_data =
      std::find(config.checkpoint.allow.begin(), config.checkpoint.allow.end(), "data") != config.checkpoint.allow.end();
  if (!allows_data) check_sources(dataset, meta.value("sources", nlohmann::json()), where);
  check_same_moments(result.changes, where);
  check_allowed(result.changes, config.checkpoint.allow, where);
  check_same_adapters(meta, config, where);
  check_split(reader, config);
  const auto record = [&](const Difference& d) {
    result.record.push_back({{"step", result.step}, {"key", d.key}, {"before", d.before}, {"now", d.now}});
  };
  for (const Change& change : result.changes) record(change.difference);
  for (const Difference& d : differences(Json(config_of(meta)), config)) {
    const bool is_recorded = std::any_of(result.changes.begin(), result.changes.end(), [&](const Change& change) {
      return d.key == change.difference.key || d.key.starts_with(change.difference.key + ".");
    });
    if (!is_recorded && is_of_training(d.key)) record(d);
  }

  const nlohmann::json training = section(config_of(meta), "training");
  if (has("data")) {
    result.stretches.clear();
    result.cursor = 0;
  } else if ((has("seq_len") || has("seed")) && result.cursor > 0) {
    result.stretches.push_back({.seq_len = training.at("seq_len").get<std::int64_t>(),
                                .seed = meta.at("seed").get<std::uint64_t>(),
                                .samples = result.cursor});
    result.cursor = 0;
  }
  dataset.continue_after(result.stretches);
  result.counts_again = has("data") || has("seq_len") || has("batch") || training.value("epochs", 0.0) != config.training.epochs;
  if (meta.contains("steps")) result.steps = meta.at("steps").get<std::int64_t>();
  return result;
}

std::vector<std::string> consequences(const Continuation& continuation, const data::Dataset& dataset) {
  const auto has = [&](std::string_view name) { return changes(continuation.changes, name); };
  const std::string left = telemetry::format_count(dataset.samples_left());
  std::vector<std::string> lines;
  if (has("recipe")) {
    lines.push_back(concat("recipe: weights, moments, schedule and data go on",
                           changes_scales(continuation.changes) ? "; FP8 scales begin anew" : ""));
  }
  if (has("seed") && !has("seq_len") && !has("data"))
    lines.push_back(concat("seed: the unseen ", left, " sequences of this epoch come in a new order"));
  if (has("seq_len") && !has("data"))
    lines.push_back(
        concat("seq_len: the unseen tokens of this epoch are now ", left, " sequences of ", dataset.seq_len(), " tokens"));
  if (has("batch")) lines.emplace_back("batch: the data go on with the next sequence; the schedule still counts steps");
  if (has("data")) lines.emplace_back("data: the run reads its data from their beginning; the schedule goes on");
  if (has("model"))
    lines.emplace_back("model: the weights go on in another architecture or with another mask; the loss shows if they fit");
  return lines;
}

std::string text_of_record(const nlohmann::json& record) {
  std::string text;
  for (const nlohmann::json& change : record) {
    const auto value = [&](const char* name) { return in_words(change.at(name).get<std::string>()); };
    text += concat(text.empty() ? "" : "; ", "step ", change.at("step").dump(), ": ", value("key"), " ", value("before"), " -> ",
                   value("now"));
  }
  return text;
}

nlohmann::json to_json(const std::vector<data::Stretch>& stretches) {
  auto result = nlohmann::json::array();
  for (const data::Stretch& stretch : stretches)
    result.push_back({{"seq_len", stretch.seq_len}, {"seed", stretch.seed}, {"samples", stretch.samples}});
  return result;
}

std::int64_t steps_of(const Config& config, const data::Dataset& dataset, const Continuation& continuation) {
  const TrainingConfig& training = config.training;
  if (training.epochs == 0) return training.steps;
  if (continuation.steps && !continuation.counts_again) return *continuation.steps;
  const std::int64_t first = continuation.counts_again ? continuation.step : 0;
  double samples = training.epochs * static_cast<double>(dataset.samples_per_epoch());
  if (continuation.counts_again) {
    samples -= static_cast<double>(continuation.cursor);
    for (const data::Stretch& stretch : continuation.stretches)
      samples -= static_cast<double>(stretch.samples * stretch.seq_len) / static_cast<double>(dataset.seq_len());
  }
  const double steps = static_cast<double>(first) + std::max(0.0, samples / static_cast<double>(training.global_batch_size));
  demand(contains(kStepRange, steps), ExitCode::config, "training.epochs = ", training.epochs, " are ", steps,
         " steps: there must be ", describe(kStepRange));
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(steps));
}

}  // namespace octet::train
