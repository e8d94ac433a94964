#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "octet/app/commands.h"
#include "octet/app/fetched.h"
#include "octet/app/threads.h"
#include "octet/base/json.h"
#include "octet/telemetry/format.h"
#include "octet/train/base_model.h"
#include "octet/train/continuation.h"
#include "octet/train/held_out.h"
#include "octet/train/restore.h"
#include "octet/train/setup.h"
#include "octet/train/tokenizer.h"
#include "octet/train/trainer.h"

namespace octet::app {

int run_eval(const EvalArgs& args) {
  train::Config config = train::load_config(args.run.path, args.run.overrides);
  config.parallel = {};  // one process evaluates, whatever mesh the run trains on
  train::check_config(config);
  const std::filesystem::path checkpoint = train::checkpoint_at(fetched_checkpoint(args.checkpoint), "--checkpoint");
  config.checkpoint.resume = checkpoint.string();  // has the architecture and the tokenizer if model.init_from is gone
  train::fetch_inputs(config, train::Fetch::everything, show_copy);
  if (config.lora) train::check_init_from(config);
  use_threads(config);
  const checkpoint::Reader reader = checkpoint::Reader::open(checkpoint);
  train::check_model(reader, config);
  train::skip_demoted(config, reader);
  const DeviceKind device = train::device_of(config);
  train::EngineOptions options = train::engine_options(config, train::recipe_of(config, device));
  options.storage.training = false;
  train::Engine engine(options, device);
  if (config.evaluation.source.empty()) train::check_split(reader, config);
  const std::int64_t step = train::restore_weights(engine, config, reader);
  const data::Dataset dataset(train::dataset_options(config, options.model.vocab));
  const train::HeldOut held_out(config, dataset);
  const std::string tokenizer = train::tokenizer_of_run(config, options.model);
  train::check_tokenizer(dataset, tokenizer);
  held_out.check_tokenizers(tokenizer);
  demand(held_out.deciding().held_out_samples() > 0, ExitCode::config, checkpoint.string(),
         ": no held-out text; set data.split, give a data.source with split = \"validation\", or add [[evaluation.source]]");
  demand(held_out.sequences() > 0, ExitCode::config, checkpoint.string(),
         ": evaluation.sequences = 0: must be above 0 for a held-out loss");
  const train::HeldOut::Losses losses = held_out.evaluate(engine);
  demand(std::isfinite(losses.deciding), ExitCode::not_finite, checkpoint.string(), ": the held-out loss is not finite");
  if (args.json) {
    Json result = {{"checkpoint", checkpoint.string()}, {"step", step}, {"eval_loss", losses.deciding}};
    for (const auto& [name, loss] : losses.by_name) result["eval_losses"][name] = loss;
    fmt::print("{}\n", json_text(result));
    return 0;
  }
  const auto print = [&](const std::string& of, double loss, const data::Dataset& set) {
    fmt::print("{}: step {}, held-out loss {}{:.4f} over {} (perplexity {:.3f})\n", checkpoint.string(), step, of, loss,
               telemetry::format_count(std::min(held_out.sequences(), set.held_out_samples()), "sequence"), std::exp(loss));
  };
  if (losses.by_name.empty()) print("", losses.deciding, held_out.deciding());
  for (std::size_t i = 0; i < losses.by_name.size(); ++i)
    print("of " + losses.by_name[i].first + " ", losses.by_name[i].second, held_out.set(i));
  return 0;
}

}  // namespace octet::app
