// What a run does with held-out text.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "octet/base/control_group.h"
#include "octet/base/directory.h"
#include "octet/base/log.h"
#include "octet/base/retry.h"
#include "octet/checkpoint/steps.h"
#include "octet/device/cuda/cuda_device.h"
#include "octet/telemetry/format.h"
#include "octet/train/calibration.h"
#include "octet/train/initial_loss.h"
#include "octet/train/restore.h"
#include "octet/train/trainer.h"

namespace octet::train {

bool Trainer::has_initial_loss() const { return continues_weights() && held_out_->any(); }

std::size_t Trainer::free_memory() const {
  if (device_ == DeviceKind::cuda) return cuda_free_memory(world_.gpu());
  const std::int64_t available = host_memory().available_bytes.value_or(std::numeric_limits<std::int64_t>::max());
  return static_cast<std::size_t>(available) / static_cast<std::size_t>(world_.size());
}

bool Trainer::has_room_for_bf16() {
  const auto has_room = [&] {
    const std::size_t needed = memory_beyond_run(engine_options_, device_), free = free_memory();
    if (needed <= free) return true;
    log_info(concat("the held-out loss in bf16 before step 1 is left out: its evaluation takes more memory than the run, ",
                    telemetry::format_bytes(needed), " on a rank, and ", telemetry::format_bytes(free), " are free"));
    return false;
  };
  return world_.first_says("whether the evaluation in BF16 fits", world_.is_first() && has_room());
}

void Trainer::evaluate_initial() {
  initial_loss_ = evaluate(*engine_, held_out_->deciding(), held_out_->sequences());
  if (!std::isfinite(initial_loss_)) {
    const std::string adapter = config_.lora ? config_.lora->init_from : "";
    log_shared_warning(concat(config_.model.init_from, adapter.empty() ? "" : " with the adapter " + adapter,
                              ": the held-out loss of its weights is not finite before step 1"));
    return;
  }
  const bool has_bf16 = engine_options_.recipe.is_fp8() && !std::isnan(initial_loss_bf16_);
  const std::string beside = has_bf16 ? fmt::format(" (in bf16: {:.6f})", initial_loss_bf16_) : "";
  log_info(fmt::format("held-out loss of {} before step 1, in {}: {:.6f}{}", config_.model.init_from, engine_options_.recipe.name,
                       initial_loss_, beside));
}

std::filesystem::path Trainer::checkpoints() const { return std::filesystem::path(config_.run.output_dir) / "checkpoints"; }

std::filesystem::path Trainer::checkpoint_folder(std::int64_t step) const { return checkpoints() / checkpoint::step_name(step); }

HeldOut::Losses Trainer::evaluate_step() {
  const telemetry::PausedMeter paused(*meter_);
  HeldOut::Losses losses = held_out_->evaluate(*engine_);
  if (!held_out_->any()) return losses;
  double deciding = losses.deciding;
  // All ranks must decide alike, and the last bits of their sums may differ.
  if (best_->acts() && world_.size() > 1)
    deciding = std::stod(world_.from_first(concat("the held-out loss after step ", step_), fmt::format("{}", deciding)));
  best_->observe(step_, deciding);
  return losses;
}

bool Trainer::restore_best(const nlohmann::json& meta) {
  const nlohmann::json state = meta.value("best", nlohmann::json());  // absent in checkpoints of earlier versions
  nlohmann::json there = nlohmann::json::array();                     // as rank 0 sees the folder, so that all ranks agree
  if (world_.is_first() && state.is_object()) {
    std::vector<std::int64_t> known = {state.value("former", std::int64_t{0})};
    for (const char* list : {"steps", "extra"}) {
      const auto steps = state.at(list).get<std::vector<std::int64_t>>();
      known.insert(known.end(), steps.begin(), steps.end());
    }
    for (const std::int64_t step : known) {
      if (retry(config_.checkpoint.retry_s, [&] { return path_exists(checkpoint_folder(step)); })) there.push_back(step);
    }
  }
  const std::string said = world_.from_first(concat("checkpoints of the best evaluations up to step ", step_), there.dump());
  const auto steps = parse_json(said, "the checkpoints of the best evaluations").get<std::vector<std::int64_t>>();
  const std::string anew =
      best_->restore(state, [&](std::int64_t step) { return std::find(steps.begin(), steps.end(), step) != steps.end(); });
  if (best_->former() > 0) {
    log_shared_warning(
        concat(anew, anew.empty() ? "" : ". ", checkpoint_folder(best_->former()).string(),
               ", the best checkpoint before, may be deleted once the next best one is saved; copy it to keep it"));
  } else if (!anew.empty()) {
    log_info(anew);
  }
  return anew.empty();
}

std::string Trainer::why_it_ends() const {
  const std::string set = held_out_->deciding_name(), of_set = set.empty() ? "" : " of " + set;
  const std::string go_on = concat(", and evaluation.patience = ", config_.evaluation.patience,
                                   ". To train on, give the same command with a larger --evaluation.patience, or with 0");
  const std::string last =
      concat("ends early, after step ", telemetry::format_count(step_), " of ", telemetry::format_count(steps_), ": the last ",
             best_->waited() == 1 ? "evaluation" : concat(best_->waited(), " evaluations"), of_set);
  const std::string kept = config_.evaluation.keep_best ? concat(" (", checkpoint_folder(best_->step()).string(), ")") : "";
  return concat(last, " found no lower loss than ", fmt::format("{:.4f}", best_->loss()), " at step ", best_->step(), kept,
                go_on);
}

void Trainer::calibrate() {
  if (!std::exchange(scales_are_new_, false) || !engine_options_.calibrates) return;
  const Clock::time_point start = Clock::now();
  const std::int64_t position = loader_->position(),
                     first = first_trained_batch(*dataset_, position, config_.training.global_batch_size);
  loader_->seek(first);
  engine_->calibrate(accumulation_, [&] { return loader_->next(); });
  engine_->stream().synchronize();
  engine_->check_ranks();
  loader_->seek(position);
  loader_->take_wait_s();
  log_info(fmt::format("scales calibrated in {:.2f} s, by step {}'s {}, forward and backward", seconds_since(start),
                       step_ + 1 + (first - position) / config_.training.global_batch_size,
                       telemetry::format_count(config_.training.global_batch_size, "sequence")));
}

}  // namespace octet::train
