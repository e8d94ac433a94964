// Moves old or abandoned checkpoints and metrics to history/.
#include <cstdio>
#include <utility>

#include "octet/base/directory.h"
#include "octet/base/log.h"
#include "octet/base/retry.h"
#include "octet/base/system_call.h"
#include "octet/checkpoint/steps.h"
#include "octet/telemetry/attempts.h"
#include "octet/telemetry/jsonl.h"
#include "octet/train/disk_space.h"
#include "octet/train/trainer.h"

namespace octet::train {

namespace fs = std::filesystem;

void Trainer::read_run_json() {
  const fs::path about = fs::path(config_.run.output_dir) / "run.json", root = checkpoints();
  const double retry_s = config_.checkpoint.retry_s;
  try {
    before_ = retry(retry_s, [&] { return path_exists(about) ? std::optional(telemetry::read_run_info(about)) : std::nullopt; });
  } catch (const SystemError&) {
    throw;
  } catch (const Error&) {
    if (options_.resume == "auto") {
      demand(!retry(retry_s, [&] { return checkpoint::find_checkpoints(root); }).empty(), ExitCode::data, about.string(),
             ": damaged, and ", root.string(),
             " has no checkpoint. Is a file system not mounted? To begin anew, move the file away");
      const std::string& local_dir = config_.checkpoint.local_dir;
      demand(local_dir.empty() || job_has_trained_, ExitCode::data, about.string(),
             ": damaged, so the copies in checkpoint.local_dir = ", local_dir,
             " cannot be used. To go on from the newest checkpoint without them, move the file away");
    }
    fs::path away = about.string() + ".damaged";
    for (int n = 2; path_exists(away); ++n) away = concat(about.string(), ".damaged-", n);
    if (std::rename(about.c_str(), away.c_str()) != 0) fail_errno(ExitCode::internal, about, "cannot be renamed");
    log_warning(concat(about.string(), ": damaged; it is now ", away.string(), ", and the run does without it"));
  }
}

void Trainer::judge_history() {
  const fs::path folder = config_.run.output_dir, root = checkpoints(), about = folder / "run.json";
  const double retry_s = config_.checkpoint.retry_s;
  const auto name = [&](const fs::path& path) { return retry(retry_s, [&] { return true_path(path); }); };
  if (resumed_ && (from_memory_ || name(resumed_->path()).parent_path() == name(root))) continued_from_ = resumed_->step();
  const std::int64_t recorded = before_ ? before_->checkpoint_step : 0;
  if (continued_from_ && !from_memory_ && recorded > *continued_from_) missing_step_ = recorded;
  const bool automatic = options_.resume == "auto";
  if ((automatic && resumed_) || from_memory_) return;
  if (automatic) {
    demand(recorded == 0, ExitCode::data, root.string(), ": no checkpoint is there, but ", about.string(),
           " says that the one of step ", recorded,
           " was saved. Is a file system not mounted? To begin anew, give another run.output_dir, or --resume none "
           "--run.set_aside=true");
  }
  History history = history_of(folder, retry_s);
  if (automatic && !history.exported()) {  // a run that ended before its first checkpoint
    // A job does its own steps again. Another command may train something else.
    if (history.has_metrics && retry(retry_s, [&] { return telemetry::earlier_attempts(folder); }).empty())
      old_history_ = std::move(history);
    return;
  }
  const bool continued = continued_from_ && !history.checkpoints.empty() && *continued_from_ >= history.checkpoints.front();
  if (history.empty() || continued) return;
  demand(config_.run.set_aside, ExitCode::config, why_in_the_way(folder, history, options_.resume, continued_from_));
  const auto stays = [&](const std::string& from, const char* key, const char* what) {
    demand(from.empty() || name(from) != name(folder / what), ExitCode::config, from, ": ", key, " is the ", what,
           " of the run that would be set aside; give another run.output_dir");
  };
  stays(config_.model.init_from, "model.init_from", "model");
  if (config_.lora) stays(config_.lora->init_from, "lora.init_from", "adapter");
  old_history_ = std::move(history);
}

std::optional<std::string> Trainer::first_start() const {
  if (!continued_from_ || !before_) return std::nullopt;
  const std::string& first = before_->first_started.empty() ? before_->started : before_->first_started;
  return first.empty() ? std::nullopt : std::optional(first);
}

// All ranks have read what they need.
void Trainer::set_old_history_aside() {
  world_.barrier("read");
  if (!old_history_) return;
  lock_->renew();
  const fs::path folder = config_.run.output_dir;
  log_info(concat(folder.string(), ": ", old_history_->text(), " is now in ",
                  set_aside(folder, *old_history_, continued_from_).string()));
}

void Trainer::set_abandoned_steps_aside(std::int64_t last_step) {
  world_.barrier("read");
  if (!world_.is_first()) return;
  page_.saved_step = step_;
  const fs::path folder = config_.run.output_dir;
  const double retry_s = config_.checkpoint.retry_s;
  lock_->renew();
  wait_for_room(folder, retry_s);
  try {
    const fs::path to = retry(retry_s, [&] {
      if (recorder_) {
        // A restart in the middle of this must not go on from a snapshot of the steps that are left.
        info_.timeline.clear();
        recorder_->write_run_info(info_);
        recorder_->sync();
      }
      if (remote_) remote_->abandon({.after = step_, .last = last_step});
      return set_abandoned_aside(folder, last_step, step_);
    });
    log_info(concat("what was recorded after step ", step_, " is now in ", to.string()));
    // So that a start that is killed before it writes its own run.json does not set them aside again.
    if (!recorder_ && before_) {
      before_->checkpoint_step = step_;
      before_->exported_step = 0;
      before_->timeline.clear();
      retry(retry_s, [&] { telemetry::write_run_info(folder / "run.json", *before_); });
    }
  } catch (const Error& error) {
    fail_again(error, concat(error.what(), "; going back needs this", how_to_mend(error)));
  }
}

}  // namespace octet::train
