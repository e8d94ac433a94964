#include "octet/train/initial_loss.h"

#include "octet/recipes/registry.h"
#include "octet/train/base_model.h"
#include "octet/train/restore.h"

namespace octet::train {

EngineOptions evaluation_in_bf16(const EngineOptions& run) {
  EngineOptions options = run;
  options.recipe = recipes::make_recipe("bf16", {});
  options.training = options.calibrates = false;
  options.watch = nullptr;
  options.layout.weights = parallel::Weights::resharded;
  return options;
}

double initial_loss_in_bf16(const EngineOptions& run, Device& device, const parallel::Groups& groups,
                            const data::Dataset& dataset, const Config& config) {
  Engine engine(evaluation_in_bf16(run), device, groups);
  begin_model(engine, config);
  const double loss = evaluate(engine, dataset, config.evaluation.sequences);
  engine.close();
  return loss;
}

}  // namespace octet::train
