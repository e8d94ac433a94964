// Finds the checkpoint from which a run resumes. With checkpoint.remote, fetches that checkpoint if need be, and copies new
// checkpoints there while training continues.
#include <fmt/format.h>

#include <sstream>

#include "octet/base/directory.h"
#include "octet/base/file.h"
#include "octet/base/log.h"
#include "octet/base/retry.h"
#include "octet/base/system_call.h"
#include "octet/checkpoint/steps.h"
#include "octet/train/tokenizer.h"
#include "octet/train/trainer.h"

namespace octet::train {

namespace {

namespace fs = std::filesystem;

// A file in run.output_dir. It is there while checkpoints in checkpoint.remote wait to be marked as abandoned.
constexpr const char* kAbandoned = "remote-abandoned.json";

// Returns nothing if no checkpoints of this bucket wait to be marked.
std::optional<checkpoint::AbandonedSteps> read_abandoned(const fs::path& folder, const storage::ObjectUrl& url) {
  const fs::path path = folder / kAbandoned;
  if (!path_exists(path)) return std::nullopt;
  const nlohmann::json steps = parse_json(read_file(path), path.string());
  if (steps.value("url", "") != url.text()) return std::nullopt;
  return checkpoint::AbandonedSteps{.after = steps.value("after", std::int64_t{0}), .last = steps.value("last", std::int64_t{0})};
}

void remember_abandoned(const fs::path& folder, const storage::ObjectUrl& url,
                        const std::optional<checkpoint::AbandonedSteps>& steps) {
  if (!steps) return remove_tree(folder / kAbandoned);
  write_file_atomically(folder / kAbandoned,
                        Json{{"url", url.text()}, {"after", steps->after}, {"last", steps->last}}.dump() + "\n");
}

}  // namespace

void Trainer::find_checkpoint() {
  if (world_.is_first()) read_run_json();
  open_snapshots();
  const double retry_s = config_.checkpoint.retry_s;
  if (world_.is_first() && snapshots_) {
    const auto found = retry(retry_s, [&] { return checkpoint::find_checkpoints(checkpoints()); });
    if (!found.empty()) newest_on_disk_ = found.front().step;
  }
  resumed_ = newest_snapshot(newest_on_disk_);
  // A full disk may have kept the earlier attempt from recording that it has trained.
  job_has_trained_ = job_has_trained_ || (from_memory_ && !from_local_dir_);
  std::string all_damaged;  // why no checkpoint can be read
  const auto open_latest = [&]() -> std::optional<checkpoint::Reader> {
    try {
      return checkpoint::Reader::open_latest(checkpoints(), log_shared_warning, world_.checkpoint_ranks(), retry_s);
    } catch (const checkpoint::Damaged& error) {
      all_damaged = error.what();
      return std::nullopt;
    }
  };
  // A checkpoint that is damaged here may be intact in checkpoint.remote.
  if (options_.resume == "auto" && !from_memory_ && !config_.checkpoint.remote.empty()) resumed_ = open_latest();
  fetch_newer_checkpoint();
  if (from_memory_) {
    // It is of this job, so the run goes on whatever its first attempt began with.
  } else if (options_.resume == "auto") {
    if (!resumed_) resumed_ = open_latest();
    look_beneath_damaged(all_damaged);
    if (!resumed_ && !all_damaged.empty()) throw checkpoint::Damaged(all_damaged);
  } else if (options_.resume != "none") {
    // The run that saves there may go on, so hosts may have found different checkpoints.
    world_.agree("the checkpoint that checkpoint.resume names", fs::path(options_.resume).filename().string());
    resumed_ = checkpoint::Reader::open(options_.resume, world_.checkpoint_ranks(), retry_s);
  }
  if (world_.is_first()) {
    judge_history();
    judge_remote();
  }
  judge_local_copies();
  world_.agree("the checkpoint to resume from", resumed_ ? concat("step ", resumed_->step()) : "none");
  if (resumed_ && config_.anomaly.remedy == "demote") {
    skip(resumed_->meta().value("demoted", std::vector<std::string>()));
    if (!demoted_.empty())
      log_info(
          concat("computing in BF16, as anomaly.remedy has it since a rollback: ", fmt::format("{}", fmt::join(demoted_, ", "))));
  }
  if (resumed_) continuation_ = continue_from(*resumed_, config_, *dataset_);
}

// The other ranks wait, because they read what the first one fetches.
void Trainer::fetch_newer_checkpoint() {
  if (config_.checkpoint.remote.empty()) return;
  std::string failure;
  bool fetched = false;
  if (world_.is_first()) {
    try {
      fetched = consult_remote();
    } catch (const Error& error) {
      failure = concat(static_cast<int>(error.code()), " ", error.what());
      const auto* of_store = dynamic_cast<const storage::StoreError*>(&error);
      page_.storage_failed = of_store != nullptr && of_store->fault() == storage::StoreError::Fault::no_answer;
    }
  }
  std::istringstream told(world_.from_first("the checkpoints in checkpoint.remote", failure));
  int code = 0;
  if (told >> code) {
    std::string reason;
    std::getline(told >> std::ws, reason, '\0');
    fail(static_cast<ExitCode>(code), reason);
  }
  if (options_.resume != "auto" || !world_.first_says("whether a newer checkpoint was fetched", fetched)) return;
  resumed_.reset();
  from_memory_ = from_local_dir_ = false;
}

bool Trainer::consult_remote() {
  const storage::ObjectUrl url = storage::parse_object_url(config_.checkpoint.remote);
  const double retry_s = config_.checkpoint.retry_s;
  const fs::path folder = config_.run.output_dir, root = checkpoints();
  const auto here = retry(retry_s, [&] { return checkpoint::find_checkpoints(root); });
  // A later attempt of a job knows that what the job has saved is the newest, and does not depend on the service, unless the
  // newest one is damaged here.
  const bool gave_way = resumed_ && !from_memory_ && before_ && resumed_->step() < before_->checkpoint_step;
  const bool knows = job_has_trained_ && !gave_way && (resumed_ || (options_.resume != "auto" && !here.empty()));
  storage::ObjectStore store(retry_s);
  if (!knows) in_remote_ = checkpoint::remote_checkpoints(store, url);
  std::erase_if(in_remote_, [](const checkpoint::RemoteCheckpoint& found) { return found.abandoned; });
  std::optional<checkpoint::AbandonedSteps> abandoned = retry(retry_s, [&] { return read_abandoned(folder, url); });
  if (abandoned && !in_remote_.empty() && in_remote_.front().step > abandoned->last) {
    log_info(concat(url.text(), ": another machine has continued training from a checkpoint after step ", abandoned->after,
                    ", which this one wanted to abandon. The checkpoints there stay"));
    remember_abandoned(folder, url, std::nullopt);
    abandoned.reset();
  }
  if (abandoned) {
    std::erase_if(in_remote_, [&](const checkpoint::RemoteCheckpoint& found) { return found.step > abandoned->after; });
  }
  std::optional<checkpoint::RemoteCheckpoint> newest;
  if (!in_remote_.empty()) newest = in_remote_.front();
  remote_ = std::make_unique<checkpoint::RemoteCopies>(
      checkpoint::RemoteOptions{
          .url = url,
          .beside = root / kKeptTokenizer,
          .retry_s = retry_s,
          .alive = [this] { page_.mark(); },
          .copied =
              [folder, url](std::int64_t step) {
                log_info(concat("the checkpoint of step ", step, " is in ", url.text()));
                try {  // for `octet status`
                  write_file_atomically(folder / "remote.json", Json{{"url", url.text()}, {"step", step}}.dump() + "\n");
                } catch (const Error& error) {
                  log_warning(error.what());
                }
              },
          .remember = [folder, url](const auto& steps) { remember_abandoned(folder, url, steps); }},
      newest);
  if (abandoned) remote_->abandon(*abandoned);  // an earlier process could not
  if (options_.resume != "auto") return false;

  const std::int64_t newest_here = resumed_ ? resumed_->step() : -1;
  for (const checkpoint::RemoteCheckpoint& found : in_remote_) {
    if (found.step <= newest_here) return false;
    if (const fs::path damaged = checkpoint_folder(found.step); path_exists(damaged)) {
      const fs::path moved = checkpoint::move_to_damaged(damaged);
      log_warning(concat(damaged.string(), ": this checkpoint is damaged, and is now ", moved.string()));
    }
    log_info(concat("fetching the checkpoint of step ", found.step, " from ", url.below(found.name).text()));
    try {
      checkpoint::fetch_checkpoint(store, url, found, root, [this](std::int64_t, std::int64_t) { page_.mark(); });
      return true;
    } catch (const checkpoint::Damaged& error) {
      const fs::path moved = checkpoint::move_to_damaged(root / ("fetching-" + found.name));
      log_warning(concat(error.what(), "; what was fetched is now ", moved.string(), ", and the one before it is taken"));
    }
  }
  return false;
}

void Trainer::judge_remote() {
  if (!remote_ || from_memory_ || options_.resume == "auto") return;
  const std::int64_t step = resumed_ ? resumed_->step() : 0;
  if (in_remote_.empty() || in_remote_.front().step <= step) return;
  demand(config_.run.set_aside, ExitCode::config, config_.checkpoint.remote, ": there are checkpoints up to step ",
         in_remote_.front().step, ", and checkpoint.resume = \"", options_.resume,
         "\" does not continue them. Give another checkpoint.remote, or --run.set_aside=true, which marks those after step ",
         step, " as abandoned");
  remote_->abandon({.after = step, .last = in_remote_.front().step});
}

void Trainer::copy_to_remote(std::int64_t step) {
  if (remote_ && step > 0) remote_->copy(step, checkpoint_folder(step));
}

std::string Trainer::wait_for_remote() {
  if (!remote_) return "";
  page_.enter(telemetry::Phase::saving);
  std::string failure = remote_->wait();
  // What was read until now was not deleted.
  if (page_.saved_step > page_.start_step) writer_->delete_surplus(step_, best_->checkpoint());
  return failure;
}

void Trainer::demand_remote() {
  const std::string failure = wait_for_remote();
  demand(failure.empty(), ExitCode::internal, "the run is complete in ", config_.run.output_dir, ", but its checkpoint of step ",
         info_.checkpoint_step, " is not in ", config_.checkpoint.remote, ": ", failure, ". The same command copies it");
}

}  // namespace octet::train
