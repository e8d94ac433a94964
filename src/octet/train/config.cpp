#include "octet/train/config.h"

#include <algorithm>
#include <cmath>

#include "octet/base/file.h"
#include "octet/base/math.h"
#include "octet/base/require.h"
#include "octet/base/system_call.h"
#include "octet/base/visible.h"
#include "octet/comm/socket.h"
#include "octet/recipes/registry.h"
#include "octet/storage/object_store.h"
#include "octet/telemetry/format.h"
#include "octet/train/anomaly.h"
#include "octet/train/config_presets.h"
#include "octet/train/setup.h"
#include "octet/train/snapshot_pace.h"

namespace octet::train {
namespace {

constexpr std::string_view kNameCharacters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";

// The largest number of micro-batches of a step on a rank, because schedules have an entry for each, and of tokens in a
// micro-batch, because they are counted in 32 bits.
constexpr std::int64_t kMostMicroBatches = 1 << 16, kMostTokens = 1 << 27;

constexpr std::string_view kOldRemedy = "none";  // what earlier versions, and checkpoints of theirs, call "rollback"

bool gives(const TomlNode& root, const char* key) {
  const TomlNode* training = root.find("training");
  return training && training->find(key);
}

// A preset sets its keys before the others are read, so keys that are given in addition override it.
void apply_preset(PrecisionConfig& precision, const TomlNode& root) {
  const TomlNode* table = root.find("precision");
  const TomlNode* preset = table ? table->find("preset") : nullptr;
  if (!preset) return;
  const bool fast = (preset->raw.empty() ? preset->string : preset->raw) == "fast";
  precision.accumulation.dgrad = fast ? "fast" : "auto";
}

// steps and epochs set the same thing: the one given last counts, and the other becomes 0.
void read_into(Config& config, const TomlNode& root, const FieldSource& source) {
  apply_preset(config.precision, root);
  read_record(config, root, source, "");
  if (config.anomaly.remedy == kOldRemedy) config.anomaly.remedy = AnomalyConfig().remedy;
  TrainingConfig& training = config.training;
  if (gives(root, "epochs") && training.epochs > 0) {
    demand(!gives(root, "steps") || training.steps == 0, ExitCode::config, source.name, ": training.steps = ", training.steps,
           " and training.epochs = ", training.epochs, ": give one of them");
    training.steps = 0;
  } else if (gives(root, "steps") && training.steps > 0) {
    training.epochs = 0;
  }
}

void walk(const std::string& path, const Json& before, const Json& now, std::vector<Difference>& out) {
  const auto text = [](const Json& value) { return value.is_null() ? std::string() : value.dump(); };
  const auto join = [&](const std::string& key) { return path.empty() ? key : path + "." + key; };
  const auto tables = [](const Json& list) { return list.is_array() && !list.empty() && list[0].is_object(); };
  if (tables(before) && tables(now)) {
    const auto element = [](const Json& list, std::size_t i) { return i < list.size() ? list[i] : Json(); };
    for (std::size_t i = 0; i < std::max(before.size(), now.size()); ++i)
      walk(join(std::to_string(i)), element(before, i), element(now, i), out);
    return;
  }
  if (!before.is_object() || !now.is_object()) {
    if (before != now) out.push_back({.key = path, .before = text(before), .now = text(now)});
    return;
  }
  for (const auto& [key, value] : now.items()) walk(join(key), before.contains(key) ? before[key] : Json(), value, out);
  for (const auto& [key, value] : before.items()) {
    if (!now.contains(key)) walk(join(key), value, Json(), out);
  }
}

void check_evaluation(const EvaluationConfig& evaluation, const std::string& where) {
  const auto check = [&](bool holds, const auto&... parts) { demand(holds, ExitCode::config, where, parts...); };
  std::string names;
  for (std::size_t i = 0; i < evaluation.source.size(); ++i) {
    const auto& [name, path] = evaluation.source[i];
    check(!name.empty(), "an [[evaluation.source]] has no name");
    check(name.find_first_not_of(kNameCharacters) == std::string::npos, "evaluation.source: name = ", in_quotes(name),
          ": may have letters, digits, \"-\", \"_\" and \".\"");
    check(!path.empty(), "evaluation.source ", name, " has no path; give the prefix of a corpus that `octet data prepare` made");
    for (std::size_t other = 0; other < i; ++other)
      check(evaluation.source[other].name != name, "evaluation.source: two sources have the name ", name);
    names += (names.empty() ? "" : ", ") + name;
  }
  const bool decides = evaluation.decides.empty() || std::any_of(evaluation.source.begin(), evaluation.source.end(),
                                                                 [&](const auto& s) { return s.name == evaluation.decides; });
  check(decides, "evaluation.decides = ", in_quotes(evaluation.decides), ": ",
        names.empty() ? "there is no [[evaluation.source]]" : "no [[evaluation.source]] has this name; there are " + names);
  const bool acts = evaluation.keep_best || evaluation.patience > 0;
  const std::string key =
      evaluation.keep_best ? "evaluation.keep_best = true" : concat("evaluation.patience = ", evaluation.patience);
  check(!acts || evaluation.interval > 0, key, ": needs evaluation.interval above 0");
  check(!acts || evaluation.sequences > 0, key, ": needs evaluation.sequences above 0");
}

}  // namespace

std::string recipe_choices() {
  static const std::string choices = joined(recipes::recipe_names(), " | ");
  return choices;
}

Config parse_config(std::string_view text, const std::string& source, std::span<const std::string> overrides) {
  Config config;
  config.file = source;
  read_into(config, parse_toml(text, source), {.name = source, .advise = advise_key});
  for (const std::string& assignment : overrides) apply_override(config, assignment);
  return config;
}

std::string read_config_text(const std::filesystem::path& path) {
  try {
    return read_file(path);
  } catch (const SystemError& error) {
    if (error.may_pass()) throw;  // not a mistake in the file, so a supervisor tries again
    const bool ours = std::ranges::any_of(presets(), [&](const Preset& preset) { return preset.name == path.stem().string(); });
    std::error_code ignored;
    fail(ExitCode::config, error.what(),
         ours && !std::filesystem::exists(path, ignored)
             ? "; Octet's sources have it in configs, and an installation in share/octet/configs"
             : "");
  } catch (const Error& error) {
    fail(ExitCode::config, error.what());
  }
}

Config load_config(const std::filesystem::path& path, std::span<const std::string> overrides) {
  return parse_config(read_config_text(path), path.string(), overrides);
}

void apply_override(Config& config, const std::string& assignment, const std::string& option) {
  const std::size_t equals = assignment.find('=');
  const std::string name = option + printable(assignment);
  demand(equals != std::string::npos && equals > 0, ExitCode::config, name, ": must be ", option, "section.key=value");
  const std::string path = assignment.substr(0, equals);
  demand(std::count(path.begin(), path.end(), '.') < kTomlDepth, ExitCode::config, in_quotes(option + path),
         ": nested deeper than ", kTomlDepth, " levels");
  const FieldSource source{.name = name, .is_override = true, .advise = advise_key};
  TomlNode node = parse_toml_value(assignment.substr(equals + 1), source.name);
  for (std::size_t end = path.size(); end != std::string::npos;) {
    const std::size_t dot = end == 0 ? std::string::npos : path.rfind('.', end - 1);
    const std::size_t begin = dot == std::string::npos ? 0 : dot + 1;
    TomlNode table;
    table.kind = TomlNode::Kind::table;
    table.entries.push_back({.key = path.substr(begin, end - begin), .value = std::move(node), .comment = {}});
    node = std::move(table);
    end = dot;
  }
  read_into(config, node, source);
}

void check_config(const Config& config, std::int64_t ranks) {
  const std::string where = config.file.empty() ? "" : config.file + ": ";
  const auto check = [&](bool holds, const auto&... parts) { demand(holds, ExitCode::config, where, parts...); };

  const ModelConfig& model = config.model;
  check(!model.config.empty() || !model.init_from.empty() || model.hidden_size.has_value(),
        "no model: give [model] config = \"PRESET\", init_from = \"DIRECTORY\" or an architecture (hidden_size, ...)");
  check(model.config.empty() || model.init_from.empty(), "model.config = \"", model.config, "\" and model.init_from = \"",
        model.init_from, "\": give one of them");
  const std::string tokenizer = model.tokenizer.value_or("");
  check(tokenizer.empty() || tokenizer == "byte", "model.tokenizer = ", in_quotes(tokenizer),
        ": must be \"byte\"; without it the tokenizer files of model.init_from count");
  check(!config.run.output_dir.empty(), "run.output_dir is empty; give a folder for the run");
  check(!config.data.source.empty(), "no data: add [[data.source]] with path = \"PREFIX\" of a corpus that `octet data prepare` made");
  for (const SourceConfig& source : config.data.source) check(!source.path.empty(), "a [[data.source]] has no path");
  const auto [train_share, held_out_share] = config.data.split;
  check(std::abs(train_share + held_out_share - 1.0) < 1e-9, "data.split = [", train_share, ", ", held_out_share, "]: must add up to 1");

  check_evaluation(config.evaluation, where);
  check(!config.lora || !config.lora->targets.empty(),
        "lora.targets = []: adapters of no linear train nothing; name linears, or give \"all-linear\"");

  const TrainingConfig& training = config.training;
  check(training.steps > 0 || training.epochs > 0, "training.steps = 0: must be at least 1, or give training.epochs");

  if (config.anomaly.remedy == "demote") {
    check(config.metrics.health_freq > 0, "anomaly.remedy = \"demote\" with metrics.health_freq = 0: there would be no health samples to judge by");
    check(recipes::make_recipe(config.precision.recipe, {}).is_fp8(), "anomaly.remedy = \"demote\" with precision.recipe = \"",
          config.precision.recipe, "\": no linear is in FP8 that could go to BF16; leave anomaly.remedy out");
    check(config.parallel.pipeline == 1, "anomaly.remedy = \"demote\" with parallel.pipeline = ", config.parallel.pipeline,
          ": health samples cover only the first stage's layers");
  }
  check(parse_spike(config.anomaly.spike).has_value(), "anomaly.spike = \"", printable(config.anomaly.spike),
        "\": must be auto, off or a number above 1");

  check(SnapshotPace::parse(config.checkpoint.memory_every).has_value(), "checkpoint.memory_every = \"",
        printable(config.checkpoint.memory_every), "\": must be auto or a number of steps, 0 for none");

  check(config.checkpoint.local_dir.empty() || config.checkpoint.memory_every != "0", "checkpoint.local_dir with "
        "checkpoint.memory_every = 0: there are no snapshots to copy; use \"auto\" or a number of steps");

  if (!config.checkpoint.remote.empty()) {
    try {
      storage::parse_object_url(config.checkpoint.remote);
    } catch (const Error& error) {
      check(false, "checkpoint.remote = ", error.what());
    }
  }
  comm::check_interface(config.comm.interface);

  const ParallelConfig& parallel = config.parallel;
  std::int64_t others = 1;
  for (const auto& [axis, size] : {std::pair("pipeline", parallel.pipeline), std::pair("replicate", parallel.replicate),
                                   std::pair("context", parallel.context), std::pair("tensor", parallel.tensor)}) {
    const std::int64_t left = ranks / others;
    check(size <= left && left % size == 0, "parallel.", axis, " = ", size, ": must divide ",
          others == 1 ? concat("the number of ranks, ", ranks) : concat(left, ", what the axes before it leave of ", ranks, " ranks"));
    others *= size;
  }
  check(parallel.shard != 0, "parallel.shard = 0: must be at least 1, or -1 for the ranks that remain");
  const std::int64_t shard = parallel.shard == -1 ? ranks / others : parallel.shard;
  check(others * shard == ranks, "parallel.shard = ", parallel.shard, ": must be ", ranks / others,
        others == 1 ? ", the number of ranks" : concat(": ", ranks, " ranks divided by ", others, " for the other axes"), ", or -1");
  check(parallel.expert <= shard && shard % parallel.expert == 0, "parallel.expert = ", parallel.expert,
        ": must divide parallel.shard = ", shard);

  check(parallel.context == 1 || training.seq_len % (2 * parallel.context) == 0, "training.seq_len = ", training.seq_len,
        ": must be a multiple of ", 2 * parallel.context, ", twice parallel.context = ", parallel.context);

  const std::int64_t coordinates = parallel.replicate * shard;
  const std::int64_t at_once = training.micro_batch_size * coordinates;
  check(at_once > 0, "training.micro_batch_size = ", training.micro_batch_size, ": too large");
  const bool interleaved = parallel.pipeline_schedule == "interleaved";
  const std::int64_t together = std::max(interleaved ? parallel.pipeline : 1, parallel.expert_lanes);  // micro-batches of a step
  const std::int64_t next_batch = round_up(training.global_batch_size, at_once * together);
  check(training.global_batch_size % at_once == 0, "training.global_batch_size = ", training.global_batch_size,
        ": must be a multiple of training.micro_batch_size = ", training.micro_batch_size,
        coordinates == 1 ? "" : concat(" times ", coordinates, " data-parallel ranks"),
        ": give --training.global_batch_size=", next_batch,
        coordinates == 1 ? "" : ", or a layout with fewer of them: `octet plan` with --search finds the fastest");
  check(interleaved == (parallel.pipeline_chunks > 1), "parallel.pipeline_chunks = ", parallel.pipeline_chunks,
        " with parallel.pipeline_schedule = \"", parallel.pipeline_schedule, "\": must be ", interleaved ? "at least 2" : "1");
  check(!interleaved || parallel.pipeline > 1, "parallel.pipeline_schedule = \"interleaved\" with parallel.pipeline = 1: there is one stage");
  const std::int64_t micro_batches = training.global_batch_size / at_once;
  check(micro_batches <= kMostMicroBatches, "training.global_batch_size = ", training.global_batch_size, ": ", micro_batches,
        " micro-batches a step on each rank, but at most ", kMostMicroBatches, " are possible; raise training.micro_batch_size");
  check(training.micro_batch_size <= kMostTokens / training.seq_len, "training.micro_batch_size = ", training.micro_batch_size,
        ": with training.seq_len = ", training.seq_len, " a rank would compute more than ", kMostTokens,
        " tokens at once; batch sizes count sequences, not tokens");
  const std::string in_a_step = concat(" with ", telemetry::format_count(micro_batches, "micro-batch"), " a step on each rank");
  check(!interleaved || micro_batches % parallel.pipeline == 0, "parallel.pipeline_schedule = \"interleaved\"", in_a_step,
        ": must be a multiple of parallel.pipeline = ", parallel.pipeline, ": give --training.global_batch_size=", next_batch);
  const ActivationCheckpointConfig& again = config.activation_checkpoint;
  check(again.layers < 0 || again.mode == "full", "activation_checkpoint.layers = ", again.layers, " with mode = \"", again.mode,
        "\": only \"full\" may be for some layers");
  const std::string lanes = concat("parallel.expert_lanes = ", parallel.expert_lanes);
  check(parallel.expert_lanes == 1 || parallel.expert > 1, lanes, " with parallel.expert = 1: there is no exchange to hide");
  check(parallel.expert_lanes == 1 || parallel.pipeline == 1, lanes, " with parallel.pipeline = ", parallel.pipeline,
        ": pipeline stages run one micro-batch at a time; one of the two must be 1");
  check(micro_batches % parallel.expert_lanes == 0, lanes, in_a_step,
        ": must be a multiple of 2: give --training.global_batch_size=", next_batch);
  check(config.health.sdc_every == 0 || parallel.expert == 1, "health.sdc_every = ", config.health.sdc_every,
        " with parallel.expert = ", parallel.expert, ": experts compute for ranks of other data, so a difference would not say which "
        "rank is wrong; give --health.sdc_every=0");
  const std::string& token = config.comm.token;
  check(token.empty() || token == "none",
        "comm.token: must be \"\" or \"none\". A token does not belong in a configuration, which is copied into the run folder: give it in "
        "OCTET_TOKEN_FILE or OCTET_TOKEN");
  const PrecisionConfig& precision = config.precision;
  const std::string attention = "precision.attention = \"" + precision.attention + "\"";
  check(precision.attention == "bf16" || parallel.context == 1, attention, " with parallel.context = ", parallel.context,
        ": ranks that share sequences exchange keys in BF16; use precision.attention = \"bf16\", or parallel.tensor instead of "
        "parallel.context");
  const bool documents = config.data.document_mask || config.data.packing == "documents";
  check(precision.attention == "bf16" || !documents || (precision.emulate && device_of(config) == DeviceKind::cpu), attention,
        " with data.document_mask = true, or data.packing = \"documents\": no GPU keeps documents apart in FP8; use "
        "precision.attention = \"bf16\". precision.emulate = true lets a CPU do so");
  check(precision.reduce_amax || ranks == 1, "precision.reduce_amax = false: must be true with ", ranks,
        " ranks, or their scales would differ");
}

const std::vector<KeyDescription>& config_keys() {
  static const std::vector<KeyDescription> keys = describe_keys<Config>();
  return keys;
}

Config as_given(Config config) {
  const auto restore = [&](std::string& path) {
    if (const auto found = config.copies.find(path); found != config.copies.end()) path = found->second;
  };
  for_each_fetched_path(config, restore);
  return config;
}

void for_each_fetched_path(Config& config, const std::function<void(std::string& path)>& visit) {
  visit(config.model.init_from);
  visit(config.checkpoint.resume);
  if (config.lora) visit(config.lora->init_from);
  for (SourceConfig& source : config.data.source) visit(source.path);
  for (EvaluationSourceConfig& source : config.evaluation.source) visit(source.path);
}

std::string print_config(const Config& config) { return to_toml_document(to_node(as_given(config))); }

Json to_json(const Config& config) { return octet::to_json(to_node(as_given(config))); }

namespace {

// Adds the keys that an earlier version did not have, with their defaults.
Json with_defaults(const Json& before) {
  const auto filled = [](Json defaults, const Json& given) {
    defaults.merge_patch(given);
    return defaults;
  };
  Json result = filled(to_json(Config{}), before);
  const Json::json_pointer remedy("/anomaly/remedy"), source("/data/source");
  if (result.contains(remedy) && result[remedy] == kOldRemedy) result[remedy] = AnomalyConfig().remedy;
  if (result.contains(source) && result[source].is_array()) {
    for (Json& item : result[source]) item = filled(octet::to_json(to_node(SourceConfig{})), item);
  }
  return result;
}

}  // namespace

std::vector<Difference> differences(const Json& before, const Config& config) {
  std::vector<Difference> result;
  walk("", with_defaults(before), to_json(config), result);
  const auto says_how_to_start = [](const std::string& key) {
    return key == "checkpoint.resume" || key == "checkpoint.allow" || key == "run.set_aside" || key.starts_with("comm.");
  };
  std::erase_if(result, [&](const Difference& d) { return says_how_to_start(d.key); });
  return result;
}

}  // namespace octet::train
