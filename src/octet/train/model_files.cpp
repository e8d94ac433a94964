#include "octet/train/model_files.h"

#include "octet/base/directory.h"
#include "octet/base/log.h"
#include "octet/base/visible.h"
#include "octet/checkpoint/model_dir.h"
#include "octet/models/registry.h"
#include "octet/train/adapter_files.h"

namespace octet::train {
void load_model(Engine& engine, const std::filesystem::path& directory) {
  const checkpoint::ModelWeights weights = checkpoint::ModelWeights::open(directory);
  checkpoint::load_weights(engine.stream(), weights, checkpoint::entries_in(weights, models::names_of(engine.model())),
                           models::ignorable_names(engine.model().config()),
                           [&](parallel::Parameter& p, const std::function<void()>& write) { engine.fill(p, write); });
  engine.refresh();
}

ModelDirectory find_model(const std::filesystem::path& path) {
  if (!is_adapter(path)) return {.model = path, .adapter = {}, .config = models::read_config(path), .adapters = {}};
  const AdapterDirectory adapter = open_adapter(path);
  demand(!adapter.base.empty() && path_exists(std::filesystem::path(adapter.base) / "config.json"), ExitCode::data,
         (path / "adapter_config.json").string(), ": base_model_name_or_path = ", in_quotes(adapter.base),
         ": not a model directory here. Write the path of one there");
  return {.model = adapter.base, .adapter = path, .config = models::read_config(adapter.base), .adapters = adapter.adapters};
}

void load_model(Engine& engine, const ModelDirectory& from) {
  load_model(engine, from.model);
  if (!from.adapter.empty()) load_adapter(engine, from.adapter);
}

void warn_of_router_bias(const models::DecoderConfig& config, const std::filesystem::path& directory) {
  if (!config.router_bias_rate) return;
  log_warning(
      concat(directory.string(), ": its routers have biases (*.e_score_correction_bias), which ", config.family,
             " has in Octet alone. transformers leaves them out and chooses other experts; other programs may refuse them"));
}

void save_model(Engine& engine, const std::filesystem::path& directory) {
  const parallel::NameTable names = models::names_of(engine.model());
  const auto whole = [&](const parallel::Parameter& p) { return engine.whole(p); };
  if (engine.options().rank > 0) return checkpoint::join_save_weights(names, whole);
  make_folders(directory);
  const DType dtype = compute_dtype(engine.model().recipe());
  checkpoint::save_weights(directory, names, {.dtype = dtype}, whole);
  models::write_config(directory, engine.model().config(), dtype);
  warn_of_router_bias(engine.model().config(), directory);
}

}  // namespace octet::train
