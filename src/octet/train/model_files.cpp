#include "octet/train/model_files.h"

#include <algorithm>
#include <cstring>

#include "octet/base/directory.h"
#include "octet/base/log.h"
#include "octet/base/visible.h"
#include "octet/checkpoint/model_dir.h"
#include "octet/models/registry.h"
#include "octet/train/adapter_files.h"
#include "octet/train/fetch.h"

namespace octet::train {
namespace {

bool same_values(const checkpoint::ModelWeights& weights, const std::string& a, const std::string& b) {
  constexpr std::int64_t kPiece = 1 << 20;
  if (weights.find(a)->dims != weights.find(b)->dims || !weights.fault_of(a).empty()) return false;
  checkpoint::WeightReader reader_a(weights, a), reader_b(weights, b);
  std::vector<float> piece_a(static_cast<std::size_t>(std::min(kPiece, reader_a.elements()))), piece_b(piece_a.size());
  for (std::int64_t at = 0; at < reader_a.elements(); at += kPiece) {
    const std::int64_t count = std::min(kPiece, reader_a.elements() - at);
    reader_a.read(at, count, DType::f32, piece_a.data());
    reader_b.read(at, count, DType::f32, piece_b.data());
    if (std::memcmp(piece_a.data(), piece_b.data(), static_cast<std::size_t>(count) * sizeof(float)) != 0) return false;
  }
  return true;
}

}  // namespace

void check_model(const checkpoint::ModelWeights& weights, const parallel::NameTable& names, const models::DecoderConfig& config) {
  checkpoint::check_weights(weights, names, models::ignorable_names(config));
  const models::DecoderModules modules = models::family_of(config.family, "model").modules;
  const std::string head = modules.head + ".weight", embedding = modules.embedding + ".weight";
  if (!config.tied_head || !weights.find(head)) return;
  demand(same_values(weights, head, embedding), ExitCode::data, weights.dir().string(), ": ", in_quotes(head), " differs from ",
         in_quotes(embedding), ", but config.json ties them; to use this head, set tie_word_embeddings = false there");
}

void load_model(Engine& engine, const std::filesystem::path& directory) {
  const checkpoint::ModelWeights weights = checkpoint::ModelWeights::open(directory);
  const models::DecoderConfig& config = engine.model().config();
  const parallel::NameTable names = checkpoint::entries_in(weights, models::names_of(engine.model()));
  check_model(weights, names, config);
  checkpoint::load_weights(engine.stream(), weights, names, models::ignorable_names(config),
                           [&](parallel::Parameter& p, const std::function<void()>& write) { engine.fill(p, write); });
  engine.refresh();
}

ModelDirectory find_model(const std::filesystem::path& path) {
  if (!is_adapter(path)) return {.model = path, .adapter = {}, .config = models::read_config(path), .adapters = {}};
  AdapterDirectory adapter = open_adapter(path);
  adapter.base = fetch_folder(adapter.base).string();
  demand(!adapter.base.empty() && path_exists(std::filesystem::path(adapter.base) / "config.json"), ExitCode::data,
         (path / "adapter_config.json").string(), ": base_model_name_or_path = ", in_quotes(adapter.base),
         ": there is no model directory at this path; write the model's path into adapter_config.json");
  const std::optional<models::DecoderConfig> changed = changed_config_of(path);
  return {.model = adapter.base,
          .adapter = path,
          .config = changed ? *changed : models::read_config(adapter.base),
          .adapters = adapter.adapters};
}

void load_model(Engine& engine, const ModelDirectory& from) {
  load_model(engine, from.model);
  if (!from.adapter.empty()) load_adapter(engine, from.adapter);
}

void warn_of_router_bias(const models::DecoderConfig& config, const std::filesystem::path& directory) {
  if (!config.router_bias_rate) return;
  log_warning(
      concat(directory.string(), ": its routers have biases (*.e_score_correction_bias), which ", config.family,
             " has only in Octet. transformers leaves them out and chooses other experts; other programs may refuse them"));
}

std::string not_finite_weight(Engine& engine) {
  constexpr std::int64_t kPiece = std::int64_t{1} << 20;  // elements on the host at a time
  engine.model().units().wait_for_states(engine.stream());
  const DType exported = engine.options().adapters ? DType::f32 : compute_dtype(engine.options().recipe);
  std::vector<std::byte> piece, rounded;
  const auto is_finite = [&](const parallel::Parameter& p) {
    if (!p.held || !p.spec.saved) return true;
    const Tensor shard = p.primary().flat();
    for (std::int64_t begin = 0; begin < shard.elements(); begin += kPiece) {
      const Tensor part = shard.slice_rows(begin, std::min(begin + kPiece, shard.elements()));
      piece.resize(part.bytes());
      engine.stream().copy_to_host(piece.data(), part.data, part.bytes());
      engine.stream().synchronize();
      rounded.resize(bytes_of(exported, part.shape));
      checkpoint::convert(part.dtype, piece.data(), exported, rounded.data(), part.elements());
      if (!checkpoint::all_finite(exported, rounded.data(), part.elements())) return false;
    }
    return true;
  };
  const auto& all = engine.model().parameters().parameters();
  const auto own = std::find_if_not(all.begin(), all.end(), is_finite) - all.begin();
  const std::vector<double> firsts = engine.of_all_ranks(static_cast<double>(own));
  const auto first = static_cast<std::size_t>(*std::min_element(firsts.begin(), firsts.end()));
  return first < all.size() ? all[first].spec.name : "";
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
