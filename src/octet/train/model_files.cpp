#include "octet/train/model_files.h"

#include "octet/base/directory.h"
#include "octet/checkpoint/model_dir.h"
#include "octet/models/registry.h"

namespace octet::train {
void load_model(Engine& engine, const std::filesystem::path& directory) {
  const checkpoint::ModelWeights weights = checkpoint::ModelWeights::open(directory);
  checkpoint::load_weights(engine.stream(), weights, models::names_of(engine.model()),
                           models::ignorable_names(engine.model().config()),
                           [&](parallel::Parameter& p, const std::function<void()>& write) { engine.fill(p, write); });
  engine.refresh();
}

void save_model(Engine& engine, const std::filesystem::path& directory) {
  const parallel::NameTable names = models::names_of(engine.model());
  const auto whole = [&](const parallel::Parameter& p) { return engine.whole(p); };
  if (engine.options().rank > 0) return checkpoint::join_save_weights(names, whole);
  make_folders(directory);
  const DType dtype = compute_dtype(engine.model().recipe());
  checkpoint::save_weights(directory, names, {.dtype = dtype}, whole);
  models::write_config(directory, engine.model().config(), dtype);
}

}  // namespace octet::train
