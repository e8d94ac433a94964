#include <fmt/format.h>

#include <cmath>

#include "octet/app/commands.h"
#include "octet/app/threads.h"
#include "octet/base/json.h"
#include "octet/train/restore.h"
#include "octet/train/setup.h"
#include "octet/train/tokenizer.h"
#include "octet/train/trainer.h"

namespace octet::app {

int run_eval(const EvalArgs& args) {
  train::Config config = train::load_config(args.run.path, args.run.overrides);
  train::check_config(config);
  const std::filesystem::path checkpoint = train::model_at(args.checkpoint);
  use_threads(config);
  const DeviceKind device = train::device_of(config);
  train::EngineOptions options = train::engine_options(config, train::recipe_of(config, device));
  options.training = false;
  train::Engine engine(options, device);
  train::check_split(checkpoint::Reader::open(checkpoint), config);
  const std::int64_t step = train::restore_weights(engine, checkpoint);
  const data::Dataset dataset(train::dataset_options(config, options.model.vocab));
  train::check_tokenizer(dataset, train::tokenizer_of_run(config, options.model));
  const std::int64_t sequences = std::min(config.evaluation.sequences, dataset.held_out_samples());
  demand(dataset.held_out_samples() > 0, ExitCode::data, checkpoint.string(),
         ": no held-out text; set data.split, or give a data.source with split = \"validation\"");
  demand(sequences > 0, ExitCode::config, checkpoint.string(), ": evaluation.sequences = 0: must be above 0 for a held-out loss");
  const double loss = train::evaluate(engine, dataset, sequences);
  demand(std::isfinite(loss), ExitCode::not_finite, checkpoint.string(), ": the held-out loss is not finite");
  if (args.json) {
    fmt::print("{}\n", Json({{"checkpoint", checkpoint.string()}, {"step", step}, {"eval_loss", loss}}).dump());
  } else {
    fmt::print("{}: step {}, held-out loss {:.4f} over {} sequences (perplexity {:.3f})\n", checkpoint.string(), step, loss,
               sequences, std::exp(loss));
  }
  return 0;
}

}  // namespace octet::app
