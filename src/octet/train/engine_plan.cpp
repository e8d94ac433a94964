// Counts the memory and work that an engine needs, on the meta device.
#include <algorithm>
#include <numeric>
#include <vector>

#include "octet/train/engine.h"

namespace octet::train {

std::size_t MemoryPlan::total() const {
  return std::accumulate(bytes.begin(), bytes.begin() + kDeviceCategories, std::size_t{0});
}

// Returns the capacities that the arenas need, after a dry run.
Engine::Capacity Engine::used() const {
  Capacity used{.backward = backward_ ? backward_->high_water() : 0};
  for (const auto& stash : stashes_) used.stash = std::max(used.stash, stash->high_water());
  for (const auto& scratch : scratches_) used.scratch = std::max(used.scratch, scratch->high_water());
  return used;
}

// Does everything that a run does, once, on the meta device.
void Engine::dry_run() {
  const auto tokens = static_cast<std::size_t>(options_.micro_batch_size * options_.seq_len);
  const std::vector<std::int32_t> ids(tokens);
  for (parallel::Parameter& p : model_->parameters().parameters()) fill(p, [] {});
  refresh();
  evaluate(ids, ids);
  if (options_.whole_logits) logits(ids);
  const data::Batch batch{.first_sample = 0, .tokens = ids, .targets = ids};
  if (options_.calibrates) calibrate(1, [&] { return batch; });
  if (options_.storage.training) {
    for (const parallel::Parameter& p : model_->parameters().parameters()) {
      if (p.spec.saved) whole(p);
    }
    compare_replicas();
    begin_step(options_.layout.lanes, false);  // without a watch, codes are gathered, which need other memory than values
    for (int lane = 0; lane < options_.layout.lanes; ++lane) forward_backward(batch, nullptr);
  }
  stream_->reset_work();
  if (!options_.storage.training) return;
  begin_step(options_.layout.lanes);
  for (int lane = 0; lane < options_.layout.lanes; ++lane) forward_backward(batch, lane == 0 ? options_.watch : nullptr);
  if (options_.watch) observe_weights(*options_.watch);
  apply(0.0, 1);
  settle();
}

Engine::Capacity Engine::capacity_of(const EngineOptions& options, DeviceKind device) {
  Engine meta(options, make_meta_device(device), nullptr, nullptr);
  meta.dry_run();
  return meta.used();
}

MemoryPlan measure(const EngineOptions& options, DeviceKind device) {
  Engine meta(options, make_meta_device(device), nullptr, nullptr);
  meta.dry_run();
  MemoryPlan plan;
  plan.bytes = meta.device().memory().bytes;
  const auto used = meta.used();
  plan.bytes[static_cast<std::size_t>(MemoryCategory::activations)] += meta.stashes_.size() * used.stash + used.backward;
  plan.bytes[static_cast<std::size_t>(MemoryCategory::workspace)] += meta.scratches_.size() * used.scratch;
  plan.step = meta.stream().work();
  if (!options.storage.training) return plan;
  for (const checkpoint::Entry& entry :
       written_entries(meta.model().parameters(), meta.model().scales(), meta.optimizer(), meta.groups_))
    plan.snapshot += entry.tensor.bytes();
  for (const checkpoint::Entry& entry : meta.entries()) plan.held += entry.tensor.bytes();
  return plan;
}

}  // namespace octet::train
