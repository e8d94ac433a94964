// What a run does about ranks that compute slower than others.
#include "octet/base/log.h"
#include "octet/device/cuda/gpu_sensors.h"
#include "octet/train/trainer.h"

namespace octet::train {
namespace {

// A rank's facts about itself and its GPU, if it has one, as JSON text.
std::string straggler_facts(const World& world) {
  Json json = {{"name", world.name()}};
  if (world.gpu() < 0) return json.dump();
  const std::optional<GpuReading> gpu = GpuSensors().read(cuda_bus_id(world.gpu()));
  if (!gpu) return json.dump();
  if (gpu->clock_mhz) json["clock_mhz"] = *gpu->clock_mhz;
  if (gpu->power_w) json["power_w"] = *gpu->power_w;
  if (gpu->temperature_c) json["temperature_c"] = *gpu->temperature_c;
  json["slowed_by"] = gpu->slowed_by;
  return json.dump();
}

telemetry::GpuFigures figures_in(const nlohmann::json& facts) {
  const auto number = [&](const char* name) {
    const auto found = facts.find(name);
    return found == facts.end() ? std::nullopt : std::optional(found->get<double>());
  };
  return {.clock_mhz = number("clock_mhz"),
          .power_w = number("power_w"),
          .temperature_c = number("temperature_c"),
          .slowed_by = facts.value("slowed_by", "")};
}

}  // namespace

void Trainer::watch_stragglers() {
  const std::optional<double> own_s = own_time_.take();
  if (!own_s) return;
  page_.own_s = *own_s;
  page_.own_step = step_;
  const parallel::Mesh& mesh = world_.mesh();
  if (config_.health.straggler == 0 || mesh.ranks() == mesh.stages().count) return;
  if (!straggler_watch_) {
    std::vector<int> stages;  // which differ in their work
    for (int rank = 0; rank < mesh.ranks(); ++rank) stages.push_back(mesh.coordinate(parallel::Axis::pipeline, rank));
    straggler_watch_.emplace(config_.health.straggler, std::move(stages));
  }
  const std::vector<int> changed = straggler_watch_->look(step_, engine_->of_all_ranks(*own_s));
  const telemetry::StragglerWatch::State& mine = straggler_watch_->of(world_.rank());
  page_.slower = mine.stands ? mine.slower() : 0;
  page_.slow_intervals = mine.stands ? mine.intervals : 0;
  page_.slow_since = mine.stands ? mine.since_step : 0;
  if (!changed.empty()) tell_stragglers(changed);
}

// All ranks know who has changed. Only each rank itself can ask its GPU.
void Trainer::tell_stragglers(const std::vector<int>& changed) {
  const int told = told_stragglers_++;
  const auto key_of = [told](int rank) { return concat("facts ", told, " of rank ", rank); };
  world_.publish(key_of(world_.rank()), straggler_facts(world_), 1);
  if (!world_.is_first()) return;
  std::vector<std::string> names;
  std::vector<telemetry::GpuFigures> gpus;
  for (int rank = 0; rank < world_.size(); ++rank) {
    const nlohmann::json facts = json_of(world_.read(key_of(rank)));
    names.push_back(facts.at("name").get<std::string>());
    gpus.push_back(figures_in(facts));
  }
  for (const int rank : changed) {
    const telemetry::StragglerRecord record =
        record_of(step_, rank, names[static_cast<std::size_t>(rank)], straggler_watch_->of(rank), gpus);
    recorder_->write(record);
    if (record.is_slow()) {
      log_warning(sentence_of(record));
    } else {
      log_info(sentence_of(record));
    }
  }
}

}  // namespace octet::train
