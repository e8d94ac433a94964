// What a run does when a checkpoint cannot be written, and how it writes its model.
#include <fmt/format.h>

#include <filesystem>

#include "octet/base/directory.h"
#include "octet/base/log.h"
#include "octet/base/retry.h"
#include "octet/checkpoint/model_weights.h"
#include "octet/train/adapter_files.h"
#include "octet/train/model_files.h"
#include "octet/train/tokenizer.h"
#include "octet/train/trainer.h"

namespace octet::train {

namespace fs = std::filesystem;

void Trainer::tolerate_failed_save(const std::function<void()>& save) {
  try {
    save();
  } catch (const Error& error) {
    if (error.code() != ExitCode::internal) throw;
    ++failed_saves_;
    const std::int64_t most = config_.checkpoint.max_failed_saves;
    demand(failed_saves_ < most, ExitCode::internal, error.what(), "; ",
           failed_saves_ == 1 ? "this save" : concat(failed_saves_, " saves in a row"),
           " failed, and checkpoint.max_failed_saves = ", most, room_for_saves(error), how_to_mend(error));
    log_shared_warning(concat(error.what(), "; training goes on", info_.checkpoint_step > 0 ? " with the older ones" : "",
                              " (failed save ", failed_saves_, " of ", most, ")", room_for_saves(error)));
  }
}

// Saves, but survives a failure: a disk that is full now may have room later, so training continues with the checkpoints that
// exist. The writer reports the failure of a save in the background only when it is asked next. That is not a failure of the
// next save.
void Trainer::save_if_possible() {
  tolerate_failed_save([&] { wait_for_writer(); });
  tolerate_failed_save([&] { save(); });
}

// Makes the last checkpoint of this process. When this returns, it is on the disk; otherwise this throws.
void Trainer::save_for_good() {
  if (saved_step_ != step_) tolerate_failed_save([&] { wait_for_writer(); });
  try {
    save();
    wait_for_writer();
  } catch (const Error& error) {
    if (error.code() != ExitCode::internal) throw;
    fail(ExitCode::internal, error.what(), "; this was the last save of this process", room_for_saves(error), how_to_mend(error));
  }
}

void Trainer::wait_for_writer() {
  const bool pending = std::exchange(save_pending_, false);
  writer_->wait();
  if (pending) failed_saves_ = 0;
}

void Trainer::warn_of_deletion() const {
  if (!world_.is_first() || step_ >= steps_) return;
  const std::vector<std::int64_t> steps =
      retry(config_.checkpoint.retry_s, [&] { return writer_->surplus_at(step_ + 1, best_->checkpoint()); });
  if (steps.empty()) return;
  constexpr std::size_t kMost = 5;  // the line names no more steps than this
  const std::string which = steps.size() == 1 ? concat("the checkpoint of step ", steps[0])
                            : steps.size() > kMost
                                ? concat(steps.size(), " checkpoints, of steps ", steps.back(), " to ", steps[0])
                                : fmt::format("the checkpoints of steps {}", fmt::join(steps, ", "));
  log_warning(concat(checkpoints().string(), ": the next save deletes ", which,
                     ", because this run has checkpoint.keep_latest_k = ", config_.checkpoint.keep_latest_k,
                     ", keep_every = ", config_.checkpoint.keep_every,
                     " and evaluation.keep_best = ", config_.evaluation.keep_best ? "true" : "false",
                     ". Copy what you want to keep, or stop the run and give other values"));
}

fs::path Trainer::exported_folder() const { return fs::path(config_.run.output_dir) / (config_.lora ? "adapter" : "model"); }

bool Trainer::is_exported() {
  const auto is_there = [&] {
    if (!before_ || continued_from_ != step_ || before_->exported_step != step_) return false;
    const Json before = json_of(before_->config.text);
    if (!before.is_object()) return false;
    for (const Difference& d : differences(before, config_)) {
      if (d.key != "run.output_dir") return false;
    }
    const fs::path folder = exported_folder();
    return retry(config_.checkpoint.retry_s, [&] {
      return config_.lora ? is_whole_adapter(folder) : path_exists(folder / "config.json") && checkpoint::has_weights(folder);
    });
  };
  return world_.first_says("whether this step is exported", world_.is_first() && is_there());
}

void Trainer::export_model() {
  const fs::path folder = exported_folder();
  if (lock_) lock_->renew();
  try {
    if (config_.lora) {
      save_adapter(*engine_, {.name = as_given(config_).model.init_from, .directory = config_.model.init_from}, folder);
    } else {
      save_model(*engine_, folder);
      if (world_.is_first()) export_tokenizer(config_, engine_options_.model, folder);
    }
  } catch (const Error& error) {
    if (error.code() != ExitCode::internal) throw;
    fail_again(error, concat(error.what(), "; the checkpoint of step ", step_, " is saved", how_to_mend(error)));
  }
  info_.exported_step = step_;
}

}  // namespace octet::train
