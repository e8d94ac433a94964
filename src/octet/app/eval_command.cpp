#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "octet/app/commands.h"
#include "octet/app/fetched.h"
#include "octet/app/threads.h"
#include "octet/base/directory.h"
#include "octet/base/json.h"
#include "octet/checkpoint/manifest.h"
#include "octet/telemetry/format.h"
#include "octet/train/base_model.h"
#include "octet/train/calibration.h"
#include "octet/train/continuation.h"
#include "octet/train/held_out.h"
#include "octet/train/model_files.h"
#include "octet/train/restore.h"
#include "octet/train/setup.h"
#include "octet/train/tokenizer.h"
#include "octet/train/trainer.h"

namespace octet::app {
namespace {

// The weights to evaluate: those of a checkpoint, or of a model directory with or without an adapter.
struct Evaluated {
  std::filesystem::path path;
  std::optional<checkpoint::Reader> checkpoint;
  train::ModelDirectory directory;  // without a checkpoint
};

Evaluated find_evaluated(const EvalArgs& args) {
  demand(!args.checkpoint.empty() || !args.model.empty(), ExitCode::config,
         "--checkpoint is missing: give a checkpoint or the folder of a run, or --model for a model directory or an adapter");
  const std::filesystem::path path = args.model.empty()
                                         ? train::checkpoint_at(fetched_checkpoint(args.checkpoint), "--checkpoint")
                                         : train::model_at(fetched_checkpoint(args.model));
  if (path_exists(path / checkpoint::kManifestName))
    return {.path = path, .checkpoint = checkpoint::Reader::open(path), .directory = {}};
  return {.path = path, .checkpoint = {}, .directory = train::find_model(path)};
}

// Overwrites the weights and scales of the engine.
void load_weights(const Evaluated& evaluated, train::Engine& engine, const train::Config& config, const data::Dataset& dataset,
                  const data::Dataset& held_out) {
  if (evaluated.checkpoint) {
    train::restore_weights(engine, config, *evaluated.checkpoint);
  } else {
    train::load_model(engine, evaluated.directory);
    if (engine.options().calibrates) train::calibrate(engine, config, dataset, held_out);
  }
}

}  // namespace

int run_eval(const EvalArgs& args) {
  train::Config config = train::load_config(args.run.path, args.run.overrides);
  config.parallel = {};  // one process evaluates, whatever mesh the run trains on
  const Evaluated evaluated = find_evaluated(args);
  const train::ModelDirectory& directory = evaluated.directory;
  const auto& checkpoint = evaluated.checkpoint;
  const std::string path = evaluated.path.string();
  if (checkpoint) {
    config.checkpoint.resume = path;  // has the architecture and the tokenizer if model.init_from is gone
  } else {
    config.model = {};
    config.model.init_from = directory.model.string();
    config.lora.reset();
  }
  train::check_config(config);
  train::fetch_inputs(config, train::Fetch::everything, show_copy);
  if (config.lora) train::check_init_from(config);
  use_threads(config);
  if (checkpoint) {
    train::check_model(*checkpoint, config);
    train::skip_demoted(config, *checkpoint);
  }
  const DeviceKind device = train::device_of(config);
  const Recipe recipe = train::recipe_of(config, device);
  train::EngineOptions options = checkpoint ? train::engine_options(config, recipe)
                                            : train::engine_options(config, recipe, directory.config, directory.adapters);
  options.storage.training = false;
  train::Engine engine(options, device);
  if (checkpoint && config.evaluation.source.empty()) train::check_split(*checkpoint, config);
  const data::Dataset dataset(train::dataset_options(config, options.model.vocab));
  const train::HeldOut held_out(config, dataset);
  const std::string tokenizer =
      checkpoint ? train::tokenizer_of_run(config, options.model) : train::tokenizer_of_model(evaluated.path, options.model);
  train::check_tokenizer(dataset, tokenizer);
  held_out.check_tokenizers(tokenizer);
  demand(held_out.deciding().held_out_samples() > 0, ExitCode::config, path,
         ": no held-out text; set data.split, give a data.source with split = \"validation\", or add [[evaluation.source]]");
  demand(held_out.sequences() > 0, ExitCode::config, path, ": evaluation.sequences = 0: must be above 0 for a held-out loss");
  load_weights(evaluated, engine, config, dataset, held_out.deciding());
  const train::HeldOut::Losses losses = held_out.evaluate(engine);
  demand(std::isfinite(losses.deciding), ExitCode::not_finite, path, ": the held-out loss is not finite");
  if (args.json) {
    Json result = {{checkpoint ? "checkpoint" : "model", path}};
    if (checkpoint) result["step"] = checkpoint->step();
    result["eval_loss"] = losses.deciding;
    for (const auto& [name, loss] : losses.by_name) result["eval_losses"][name] = loss;
    fmt::print("{}\n", json_text(result));
    return 0;
  }
  const std::string step = checkpoint ? concat("step ", checkpoint->step(), ", ") : "";
  const auto print = [&](const std::string& of, double loss, const data::Dataset& set) {
    fmt::print("{}: {}held-out loss {}{:.4f} over {} (perplexity {:.3f})\n", path, step, of, loss,
               telemetry::format_count(std::min(held_out.sequences(), set.held_out_samples()), "sequence"), std::exp(loss));
  };
  if (losses.by_name.empty()) print("", losses.deciding, held_out.deciding());
  for (std::size_t i = 0; i < losses.by_name.size(); ++i)
    print("of " + losses.by_name[i].first + " ", losses.by_name[i].second, held_out.set(i));
  return 0;
}

}  // namespace octet::app
