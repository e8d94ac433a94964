#include "octet/train/initial_loss.h"

#include <algorithm>

#include "octet/recipes/registry.h"
#include "octet/train/base_model.h"
#include "octet/train/restore.h"

namespace octet::train {

EngineOptions evaluation_in_bf16(const EngineOptions& run) {
  EngineOptions options = run;
  options.recipe = recipes::make_recipe("bf16", {});
  options.storage.training = options.calibrates = false;
  options.watch = nullptr;
  options.layout.weights = parallel::Weights::resharded;
  return options;
}

std::size_t memory_beyond_run(const EngineOptions& run, DeviceKind device) {
  const parallel::Mesh& mesh = run.layout.mesh;
  std::size_t most = 0;
  bool beyond = false;
  for (int first = 0; first < mesh.ranks(); first += mesh.ranks() / mesh.stages().count) {  // of each pipeline stage
    EngineOptions own = run;
    own.rank = first;
    own.watch = nullptr;
    const std::size_t needed = measure(evaluation_in_bf16(own), device).total();
    beyond = beyond || needed > measure(own, device).total();
    most = std::max(most, needed);
  }
  return beyond ? most : 0;
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
