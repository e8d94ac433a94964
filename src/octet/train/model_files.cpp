#include "octet/train/model_files.h"

#include "octet/checkpoint/model_dir.h"
#include "octet/models/registry.h"

namespace octet::train {
namespace {
constexpr std::int64_t kShardBytes = std::int64_t{5} << 30;
}  // namespace

void load_model(Engine& engine, const std::filesystem::path& directory) {
  const checkpoint::ModelWeights weights = checkpoint::ModelWeights::open(directory);
  std::vector<std::string> ignorable = {"*.rotary_emb.inv_freq"};
  if (engine.model().config().tied_head) ignorable.emplace_back("lm_head.weight");
  checkpoint::load_weights(engine.queue(), weights, models::names_of(engine.model()), ignorable);
  engine.refresh();
}

void save_model(Engine& engine, const std::filesystem::path& directory) {
  std::filesystem::create_directories(directory);
  const DType dtype = compute_dtype(engine.model().recipe());
  checkpoint::save_weights(engine.queue(), directory, models::names_of(engine.model()), dtype, kShardBytes);
  models::write_config(directory, engine.model().config());
}

}  // namespace octet::train
