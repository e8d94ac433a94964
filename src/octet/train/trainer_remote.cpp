// checkpoint.remote: fetches a checkpoint before the run goes on, and copies checkpoints there behind training.
#include <sstream>

#include "octet/base/file.h"
#include "octet/base/log.h"
#include "octet/base/retry.h"
#include "octet/base/system_call.h"
#include "octet/checkpoint/steps.h"
#include "octet/train/trainer.h"

namespace octet::train {

namespace fs = std::filesystem;

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
  if (!from_memory_ || !world_.first_says("whether a newer checkpoint was fetched", fetched)) return;
  resumed_.reset();
  from_memory_ = from_local_dir_ = false;
}

bool Trainer::consult_remote() {
  const storage::ObjectUrl url = storage::parse_object_url(config_.checkpoint.remote);
  const double retry_s = config_.checkpoint.retry_s;
  const fs::path folder = config_.run.output_dir, root = checkpoints();
  const auto here = retry(retry_s, [&] { return checkpoint::find_checkpoints(root); });
  // A later attempt of a job knows that what the job has saved is the newest, and does not depend on the service.
  const bool knows = job_has_trained_ && (from_memory_ || !here.empty());
  storage::ObjectStore store(retry_s);
  if (!knows) in_remote_ = checkpoint::remote_checkpoints(store, url);
  std::erase_if(in_remote_, [](const checkpoint::RemoteCheckpoint& found) { return found.abandoned; });
  std::optional<checkpoint::RemoteCheckpoint> newest;
  if (!in_remote_.empty()) newest = in_remote_.front();
  remote_ = std::make_unique<checkpoint::RemoteCopies>(
      checkpoint::RemoteOptions{
          .url = url,
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
              }},
      newest);
  if (options_.resume != "auto") return false;

  const std::int64_t newest_here = resumed_ ? resumed_->step() : here.empty() ? -1 : here.front().step;
  for (const checkpoint::RemoteCheckpoint& found : in_remote_) {
    if (found.step <= newest_here) return false;
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
  remote_->abandon_after(step);
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
