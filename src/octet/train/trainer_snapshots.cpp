// Snapshots of a run in the memory of its supervisors.
#include <algorithm>
#include <cstdlib>

#include "octet/base/control_group.h"
#include "octet/base/directory.h"
#include "octet/base/log.h"
#include "octet/base/retry.h"
#include "octet/checkpoint/steps.h"
#include "octet/comm/token.h"
#include "octet/telemetry/attempts.h"
#include "octet/telemetry/format.h"
#include "octet/train/trainer.h"
#include "octet/train/version.h"

namespace octet::train {
namespace {

namespace fs = std::filesystem;

constexpr double kMostOfMemory = 0.4;  // of a host's, for the snapshots of all its ranks

// Throws Error{does_not_fit} if this host has no room for the snapshots of its ranks, of `bytes` bytes each, and for `replicas`
// snapshots of other hosts' ranks. Without this check the kernel would kill the rank that runs out of memory.
void check_room(std::size_t bytes, const checkpoint::InheritedSlots& slots, std::size_t replicas, std::int64_t bytes_of_replicas) {
  const HostMemory memory = host_memory();
  const std::size_t count = slots.host.size() + replicas;
  const auto needed = static_cast<double>(bytes) * static_cast<double>(count);
  const std::string what = concat(count, " snapshots of ", telemetry::format_bytes(bytes));
  const char* const how = "; --checkpoint.memory_every=0 takes none";
  demand(!memory.total_bytes || needed <= kMostOfMemory * static_cast<double>(*memory.total_bytes), ExitCode::does_not_fit, what,
         " are more than 40% of this host's ", telemetry::format_bytes(memory.total_bytes.value_or(0)), " of memory", how);
  // Memory that an earlier attempt has taken is reused, but replicas that now belong on another host are dropped.
  const double taken = static_cast<double>(checkpoint::bytes_taken(slots)) +
                       std::min(static_cast<double>(bytes_of_replicas), static_cast<double>(bytes) * static_cast<double>(replicas));
  demand(!memory.available_bytes || needed - taken <= static_cast<double>(*memory.available_bytes), ExitCode::does_not_fit, what,
         " do not fit into the ", telemetry::format_bytes(memory.available_bytes.value_or(0)),
         " of memory that are free on this host", how);
}

}  // namespace

bool Trainer::job_has_trained() {
  if (telemetry::own_attempt().job.empty()) return false;
  bool trained = false;
  if (world_.is_first()) {
    const auto earlier = retry(config_.checkpoint.retry_s, [&] { return telemetry::earlier_attempts(config_.run.output_dir); });
    trained = std::any_of(earlier.begin(), earlier.end(),
                          [](const telemetry::Attempt& attempt) { return attempt.seconds.contains("first_step"); });
  }
  return world_.first_says("whether this job has trained", trained);
}

void Trainer::open_snapshots() {
  pace_ = SnapshotPace::of(config_.checkpoint, world_.size());
  std::optional<checkpoint::InheritedSlots> slots = checkpoint::inherited_slots();
  const std::string& local_dir = config_.checkpoint.local_dir;
  if (!slots && !local_dir.empty())
    log_shared_warning("checkpoint.local_dir gets no copies: only `octet launch --supervise` takes snapshots");
  if (!slots || pace_->takes_none()) return;
  std::unique_ptr<checkpoint::LocalSnapshots> local;
  if (!local_dir.empty()) {
    local = std::make_unique<checkpoint::LocalSnapshots>(
        local_dir, config_.run.output_dir, world_.checkpoint_ranks(),
        job_has_trained_ ? checkpoint::DiskFault::warn : checkpoint::DiskFault::refuse, config_.checkpoint.retry_s);
  }
  std::unique_ptr<checkpoint::ReplicaClient> replicas;
  if (std::optional<checkpoint::ReplicaPlaces> places = checkpoint::inherited_replica_places()) {
    bytes_of_replicas_here_ = places->bytes_here;
    replicas = std::make_unique<checkpoint::ReplicaClient>(checkpoint::ReplicaClient::Options{
        .places = std::move(*places),
        .token = comm::find_token(&::getenv),
        .claim = {static_cast<std::uint64_t>(world_.rank()), static_cast<std::uint64_t>(world_.size()), version_text()},
        // The first rank's snapshot counts only when its metrics are on the disk, so no other rank's can replace it.
        .ranks = world_.is_first() ? std::vector<int>{world_.rank()}
                                   : world_.mesh().group({parallel::Axis::replicate}, world_.rank())});
    // This host keeps for another one as many as its ranks send, or those of the first rank.
    replicas_here_ = replicas->keeps() ? slots->host.size() : checkpoint::kSlotsPerRank;
  }
  snapshots_ = std::make_unique<checkpoint::Snapshots>(checkpoint::SnapshotsOptions{
      .slots = std::move(*slots),
      .rank = world_.rank(),
      .size = world_.size(),
      .attempt = telemetry::own_attempt().number,
      .replicas = std::move(replicas),
      .local = std::move(local),
      .may_publish = [this] {
        if (recorder_) recorder_->sync();  // a snapshot must not be ahead of its metrics
      }});
}

std::optional<checkpoint::Reader> Trainer::newest_snapshot(std::int64_t saved_before) {
  if (!snapshots_) return std::nullopt;
  std::string timeline;
  if (world_.is_first() && before_) timeline = before_->timeline;
  // Only copies on disks outlive a job. They are checkpoints of this run, so they count where its checkpoints do.
  const bool outlives = !config_.checkpoint.local_dir.empty() && options_.resume == "auto";
  if (!outlives && !timeline.starts_with(telemetry::own_attempt().job + "/")) timeline.clear();  // of another job
  timeline_ = world_.from_first("the timeline of snapshots", timeline);
  if (timeline_.empty()) return std::nullopt;
  const nlohmann::json parallel = nlohmann::json(to_json(config_)).at("parallel");
  const auto usable = [&](std::int64_t step, const nlohmann::json& meta) {
    // Somebody may have edited the configuration since. On another mesh a rank holds other slices.
    if (meta.at("config").at("parallel") != parallel) return false;
    // A checkpoint that was begun and is not there would be missing for ever, if the run went on from a later step.
    const auto saved = meta.at("saved_step").get<std::int64_t>();
    return step >= newest_on_disk_ && (saved <= saved_before || saved == step);
  };
  std::optional<checkpoint::Reader> newest = snapshots_->newest(world_.checkpoint_ranks(), timeline_, usable, log_shared_warning);
  from_memory_ = newest.has_value();
  from_local_dir_ = newest && newest->path() != checkpoint::kDescriptors;
  return newest;
}

void Trainer::look_beneath_damaged(const std::string& why) {
  const std::int64_t newest = newest_on_disk_, sound = resumed_ ? resumed_->step() : 0;
  if (!world_.first_says("whether damaged checkpoints gave way", sound < newest)) return;
  newest_on_disk_ = sound;
  std::optional<checkpoint::Reader> snapshot = newest_snapshot(newest);
  if (!snapshot) return;
  if (!resumed_) {
    has_no_checkpoint_ = true;
    if (world_.is_first()) {
      log_warning(why);
      for (const checkpoint::StepDirectory& damaged : checkpoint::find_checkpoints(checkpoints()))
        log_warning(concat("the damaged checkpoint of step ", damaged.step, " is now ",
                           checkpoint::move_to_damaged(damaged.path).string()));
    }
  }
  resumed_ = std::move(snapshot);
}

std::string Trainer::new_timeline() {
  const telemetry::OwnAttempt attempt = telemetry::own_attempt();
  return concat(attempt.job, "/", attempt.number, "/", ++timelines_);
}

void Trainer::begin_snapshots() {
  if (!snapshots_) return;
  std::size_t bytes = 0;
  const std::vector<checkpoint::Entry> entries = engine_->entries();
  for (const checkpoint::Entry& entry : entries) bytes += entry.tensor.bytes();
  std::string failure;
  try {
    check_room(bytes, *checkpoint::inherited_slots(), replicas_here_, bytes_of_replicas_here_);
  } catch (const Error& error) {
    failure = error.what();
  }
  failure = checkpoint::common_failure(world_.checkpoint_ranks(), "room for snapshots", failure);
  demand(failure.empty() || pace_->is_auto(), ExitCode::does_not_fit, failure);
  if (!failure.empty()) {
    log_shared_warning(concat("no snapshots are taken: ", failure));
    snapshots_.reset();
    timeline_.clear();
    return;
  }
  if (!from_memory_) timeline_ = new_timeline();
  info_.timeline = timeline_;
  if (recorder_) retry(config_.checkpoint.retry_s, [&] { recorder_->write_run_info(info_); });  // after a rollback
  snapshots_->go_on(timeline_, step_);
  snapshots_->prepare(world_.device(), entries);
}

void Trainer::drop_snapshots() {
  if (!snapshots_) return;
  snapshots_->go_on(timeline_, -1);
  if (!recorder_) return;
  try {
    writer_->wait();  // its thread uses info_
    info_.timeline.clear();  // so that nobody goes on from a replica that could not be deleted
    recorder_->write_run_info(info_);
  } catch (const Error& error) {
    log_warning(error.what());
  }
}

void Trainer::save_what_was_due() {
  if (!from_memory_) return;
  if (!has_no_checkpoint_ && !interval_saves() && !best_saves()) return;
  const bool there =
      world_.is_first() && retry(config_.checkpoint.retry_s, [&] { return path_exists(checkpoint_folder(step_)); });
  if (world_.first_says("whether the checkpoint of the snapshot's step is there", there)) {
    saved_step_ = step_;
  } else {
    save_if_possible();
  }
}

bool Trainer::wants_snapshot() {
  if (!snapshots_ || !world_.is_first() || snapshots_->busy()) return false;
  if (const auto cost = std::exchange(snapshot_cost_, std::nullopt)) {
    // On a CPU the copy takes time from training, even if nobody waits for it.
    pace_->took(cost->step, cost->held_s + (device_ == DeviceKind::cpu ? snapshots_->took_s() : 0), step_s_);
  }
  return pace_->due(step_);
}

void Trainer::take_snapshot() {
  const Clock::time_point start = Clock::now();
  engine_->settle();
  nlohmann::json about = meta();
  // A save that has failed asks for nothing: training has gone on without that checkpoint.
  about["saved_step"] = writer_->busy() ? saved_step_ : page_.saved_step.load();
  snapshots_->save(step_, engine_->stream(), engine_->entries(), about);
  snapshot_cost_ = {.step = step_, .held_s = seconds_since(start)};
}

void Trainer::wait_for_snapshot() {
  if (!snapshots_) return;
  const Clock::time_point start = Clock::now();
  snapshots_->wait_for_copy();
  if (snapshot_cost_) snapshot_cost_->held_s += seconds_since(start);
}

}  // namespace octet::train
