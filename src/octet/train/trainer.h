// A whole run: data, steps, evaluation, metrics, checkpoints, and what to do when something goes wrong.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "octet/checkpoint/reader.h"
#include "octet/checkpoint/remote.h"
#include "octet/checkpoint/run_lock.h"
#include "octet/checkpoint/snapshots.h"
#include "octet/checkpoint/writer.h"
#include "octet/data/loader.h"
#include "octet/telemetry/meter.h"
#include "octet/telemetry/rank_page.h"
#include "octet/telemetry/recorder.h"
#include "octet/telemetry/stragglers.h"
#include "octet/train/anomaly.h"
#include "octet/train/best.h"
#include "octet/train/config.h"
#include "octet/train/continuation.h"
#include "octet/train/engine.h"
#include "octet/train/expert_watch.h"
#include "octet/train/health.h"
#include "octet/train/held_out.h"
#include "octet/train/history.h"
#include "octet/train/peak.h"
#include "octet/train/own_time.h"
#include "octet/train/snapshot_pace.h"
#include "octet/train/world.h"

namespace octet::train {

// Where a run is after a step, for progress displays.
struct StepProgress {
  std::int64_t step = 0, steps = 0;  // finished, of all
  double loss = telemetry::kUnknown;
  double tokens_per_s = telemetry::kUnknown;  // of a rank, since the last logged step
  telemetry::Worker worker = telemetry::Worker::gpu;
  double eta_s = telemetry::kUnknown;
};

struct TrainerOptions {
  Config config;
  std::string resume = "auto";                           // auto | none | PATH of a checkpoint
  std::int64_t until = 0;                                // ends after this step, as if the run could go on; 0: the last
  std::string label{};                                   // what tables call the run; empty: run.name
  std::string repeat_of{};                               // label of the run that this one repeats
  std::function<void(std::string_view line)> console{};  // a line per logged step; empty: quiet
  std::function<void(const StepProgress&)> progress{};   // called after each step that was not rolled back
  World* world = nullptr;                                // the other ranks; null: none
};

// Returns the memory that a rank of a run takes, to the byte. `snapshot` is the host memory of saves that are written during
// the steps, with the page-locked memory of their copies; it is 0 without checkpoint.async.
MemoryPlan measure_run(const Config& config, const parallel::Mesh& mesh = {}, int rank = 0);

class Trainer {
 public:
  // On the first rank, holds run.lock in run.output_dir as long as the object lives. Throws Error{config} if another run writes
  // there, or if there is a history that checkpoint.resume does not continue and run.set_aside does not allow to move.
  explicit Trainer(const TrainerOptions& options);

  // Trains to the last step or to options.until, or until evaluation.patience ends the run. Returns `preempted` when a signal
  // asked it to stop; everything is then saved. Throws Error{not_finite} when the rollbacks are used up, or at the end if most
  // of the steps were skipped, including those before a resume, or if weights are not finite. Throws Error{data} if no step had
  // a token to train on. In these cases no model is exported. run.json says how the run ended.
  ExitCode run();
  // Whether run() has trained to the last step and exported the model or the adapter.
  bool has_exported() const { return has_exported_; }

  Engine& engine() { return *engine_; }
  const MemoryPlan& plan() const { return plan_; }
  std::int64_t steps() const { return steps_; }
  // The size of a checkpoint of all ranks on the disk, in bytes, without its manifest.
  std::uint64_t checkpoint_bytes() const;

 private:
  void find_checkpoint();
  // Returns whether an earlier attempt of this supervised job has trained. Such an attempt has passed all checks, so a service
  // or a disk that fails now must not end the job. Collective.
  bool job_has_trained();
  // Opens snapshots in the memory of a supervisor (trainer_snapshots.cpp). Without a supervisor, these functions do nothing.
  void open_snapshots();
  // Returns the newest snapshot that is not older than the checkpoint of step newest_on_disk_, or nothing. A snapshot does not
  // count if a checkpoint after `saved_before` had been begun before it. Collective.
  std::optional<checkpoint::Reader> newest_snapshot(std::int64_t saved_before);
  // Continues from a snapshot if damaged checkpoints gave way to an older one, or if all checkpoints are damaged, for the reason
  // `why`. Collective.
  void look_beneath_damaged(const std::string& why);
  // Begins a timeline, unless the run continues from a snapshot, and reserves memory. Call it when step_ is the step from which
  // the run continues.
  void begin_snapshots();
  std::string new_timeline();
  // If the run continues from a snapshot, saves the checkpoint that was due at its step and is missing.
  void save_what_was_due();
  // Whether rank 0 asks for a snapshot after the present step.
  bool wants_snapshot();
  void take_snapshot();
  // Deletes all snapshots and their replicas.
  void drop_snapshots();
  // Waits until the snapshot has copied the state that the optimizer is about to change.
  void wait_for_snapshot();
  // On the first rank, reads run.json as the previous process has left it. Renames a damaged one, because a checkpoint has all
  // that a run needs. Throws Error{data} instead if only this file could say that there was a checkpoint or a snapshot.
  void read_run_json();
  // Judges copies on local disks from which a start does not continue (trainer_local.cpp). If a person starts the run without
  // newer copies from which another start could continue, refuses the start unless run.set_aside allows it. Collective.
  void judge_local_copies();
  // Moves copies on this rank's disk from which the run does not continue, unless its checkpoint is newer.
  void set_local_copies_aside();
  // Refuses a start that would leave a history in run.output_dir without a continuation, unless run.set_aside allows to move
  // it.
  void judge_history();
  void set_old_history_aside();
  ExitCode train_to_end();  // what run() does, but for the last line of run.json
  // Waits until all ranks have finished. Nothing may run on the engine afterwards.
  void end_together();
  // For checkpoint.remote (trainer_remote.cpp); without it, these functions do nothing. The first rank fetches the newest
  // checkpoint there if it is newer than all in run.output_dir and than a snapshot on the local disk, from which the run then
  // does not continue. All ranks call it together.
  void fetch_newer_checkpoint();
  // Returns whether a checkpoint was fetched.
  bool consult_remote();
  // Does the same as judge_history() for the checkpoints there.
  void judge_remote();
  // Sends the checkpoint of `step` in run.output_dir there, in the background; 0: there is none.
  void copy_to_remote(std::int64_t step);
  // Waits until the newest checkpoint is there. Returns why it is missing, or "".
  std::string wait_for_remote();
  // Waits like wait_for_remote(), at the end of a run, and throws Error{internal} if the checkpoint is not there.
  void demand_remote();
  void start_engine();
  // Whether the run starts from the weights of a model directory, not from random ones.
  bool continues_weights() const;
  bool has_initial_loss() const;
  // The free memory of this rank's device in bytes, if known. Ranks on the CPU may share a machine, so each counts on its
  // share.
  std::size_t free_memory() const;
  // Whether an evaluation in BF16 fits into the memory of the run, or into the free memory. Collective: rank 0 decides.
  bool has_room_for_bf16();
  // Sets the scales of delayed scaling from the batch of the next step that trains. The batch is read again afterwards.
  void calibrate();
  // Computes the held-out loss of the weights from which a run starts, before its first step.
  void evaluate_initial();
  // Computes the held-out losses after the present step, and passes them to best_.
  HeldOut::Losses evaluate_step();
  // Sets best_ from a checkpoint's meta. Call it when run.output_dir holds the checkpoints with which the run continues.
  // Returns false, and prints why, if the next evaluation will count as the best.
  bool restore_best(const nlohmann::json& meta);
  std::filesystem::path checkpoints() const;  // their folder
  std::filesystem::path checkpoint_folder(std::int64_t step) const;
  // On the first rank, the step of the newest checkpoint in run.output_dir from which the run continues; 0: there is none.
  std::int64_t newest_checkpoint() const { return from_memory_ ? newest_on_disk_ : continued_from_.value_or(0); }
  // Returns a sentence that says why evaluation.patience ends the run.
  std::string why_it_ends() const;
  // Returns whether the run continues and keeps the same checkpoints as before. If not, a person may have forgotten a key, so
  // nothing is deleted before the next save.
  bool resume();
  // On the first rank, warns of the checkpoints that the next save will delete because this run keeps fewer than before.
  void warn_of_deletion() const;
  void load(const checkpoint::Reader& reader);
  // Whether checkpoint.interval or evaluation.keep_best demands a checkpoint of the present step.
  bool interval_saves() const;
  bool best_saves() const;
  void save();
  void save_if_possible();
  void save_for_good();
  void wait_for_writer();
  // Check for hardware that computes or stores wrong bits (trainer_replicas.cpp). They end the run if ranks that must hold the
  // same state do not, or if the same micro-batch gives other bits on other data coordinates: with Error{unfit} on the ranks to
  // blame, with Error{peer} on all others. All ranks call them together, between steps.
  void compare_ranks() {
    compare_replicas();
    compare_products();
  }
  void compare_replicas();
  void compare_products();
  // Ends the run. `blamed` says whether this rank is to blame. `sentence` makes the message from the names of `ranks`. A rank
  // that does not know what is wrong passes none; one rank that knows is enough.
  [[noreturn]] void end_with_wrong_bits(bool blamed, const std::vector<int>& ranks,
                                        const std::function<std::string(const std::vector<std::string>& names)>& sentence);
  // Publishes this rank's own time, and finds ranks that are slower than others (trainer_stragglers.cpp). All ranks call it
  // together at a logged step.
  void watch_stragglers();
  void tell_stragglers(const std::vector<int>& changed);
  // Calls a function that saves. If a checkpoint cannot be written, training continues, until checkpoint.max_failed_saves saves
  // fail in a row.
  void tolerate_failed_save(const std::function<void()>& save);
  // Moves checkpoints and copies metrics of the steps after step_, up to last_step, to history/, on the first rank.
  void set_abandoned_steps_aside(std::int64_t last_step);
  void roll_back(Anomaly::Verdict verdict);
  // anomaly.remedy = "demote": finds the linears that FP8 represents too badly, and computes them in BF16 from now on. Returns
  // a clause for the message about the rollback. Makes a new engine, which the caller must load.
  std::string demote();
  // Adds linears to precision.skip. This affects the next engine that is made.
  void skip(const std::vector<std::string>& linears);
  // Writes how often each expert was chosen in the present step, and warns of those that starve.
  void log_experts();
  struct Watch {
    bool health, waits;
  };
  kernels::StepScalars step(Watch watch);
  // Whether the steps have produced a model: some have changed the weights, and most had finite numbers.
  bool exports() const;
  // Whether the model or adapter of the present step has been exported with this configuration. Collective.
  bool is_exported();
  // Writes the model, or the adapter.
  void export_model();
  std::filesystem::path exported_folder() const;
  // At the end of a run: throws Error{data} if no step had a token to train on, and Error{not_finite} if no model is exported
  // for another reason. If only some steps were skipped, warns. `not_finite` is not_finite_weight().
  void judge_end(const std::string& not_finite) const;
  void log(const kernels::StepScalars& scalars, const HeldOut::Losses& held_out, bool sampled);
  nlohmann::json meta() const;
  telemetry::RunInfo run_info() const;
  std::optional<std::string> first_start() const;  // as run.json has it, if the run goes on
  void record_checkpoint(std::int64_t step);
  void record_end(ExitCode code);  // in run.json
  // On the first rank, returns a clause for the message about a failed save: the size of a checkpoint, the free space, and the
  // age of the newest checkpoint, or what takes less memory. Call it while the writer is idle.
  std::string room_for_saves(const Error& failure) const;
  // On the first rank, returns a clause that says what to do after failed saves have ended the run.
  std::string how_to_mend(const Error& failure) const;
  // Returns a clause that says which command continues the run. `how` begins the clause: "", or "without --until ".
  std::string how_to_go_on(std::string_view how = "") const;

  TrainerOptions options_;
  const Config& config_;
  std::optional<World> alone_;
  World& world_;
  telemetry::RankPage& page_ = telemetry::own_page();
  EngineOptions engine_options_;
  DeviceKind device_;
  MemoryPlan plan_;
  std::unique_ptr<data::Dataset> dataset_;
  std::unique_ptr<HeldOut> held_out_;
  std::optional<Best> best_;                   // always there after the constructor
  std::optional<checkpoint::RunLock> lock_;    // on the first rank
  std::optional<checkpoint::Reader> resumed_;  // until it is loaded
  std::size_t replicas_here_ = 0;              // snapshots that this host keeps for others
  std::int64_t bytes_of_replicas_here_ = 0;    // memory that this host already holds for them
  bool job_has_trained_ = false;
  bool from_memory_ = false;                   // whether the run continues from a snapshot
  bool from_local_dir_ = false;                // whether this rank then continues from its copy on the local disk
  bool has_no_checkpoint_ = false;             // whether all checkpoints were damaged
  std::int64_t newest_on_disk_ = 0;            // on the first rank: the newest checkpoint beneath that snapshot
  Continuation continuation_;                  // of the checkpoint from which this process began
  bool scales_are_new_ = true;                 // not loaded from a checkpoint; calibrate() has not run
  std::optional<telemetry::RunInfo> before_;   // on the first rank: run.json at the start, if there is one
  std::optional<History> old_history_;         // on the first rank: to be set aside before the first step
  std::int64_t missing_step_ = 0;              // on the first rank: of a newer checkpoint that is damaged or was removed; 0: none
  std::optional<std::int64_t> continued_from_;  // the run continues the old history up to this step
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<data::Loader> loader_;
  std::unique_ptr<data::Loader> common_loader_;  // of data coordinate 0, for compare_products()
  std::unique_ptr<telemetry::Recorder> recorder_;
  std::unique_ptr<telemetry::StepMeter> meter_;
  HealthWatch health_;
  ExpertWatch experts_;
  std::vector<std::string> in_danger_;  // of the last health sample, on the first rank: what demote() would take
  std::vector<std::string> demoted_;    // linears that a remedy has put into BF16
  bool has_exported_ = false;
  Anomaly anomaly_;
  std::int64_t steps_ = 0;  // of the whole run
  std::int64_t accumulation_ = 1;
  std::int64_t step_ = 0;  // finished
  std::int64_t tokens_seen_ = 0;
  std::int64_t rollbacks_ = 0;                // rollbacks that no row of good steps has cancelled yet
  std::optional<std::int64_t> went_back_to_;  // in the last rollback of this process
  std::int64_t saved_step_ = -1;
  bool save_pending_ = false;      // whether a save was begun for which nobody has waited
  std::int64_t failed_saves_ = 0;  // in a row
  telemetry::RunInfo info_;        // on the first rank; after the first step the thread that writes checkpoints owns it
  double initial_loss_ = telemetry::kUnknown, initial_loss_bf16_ = telemetry::kUnknown;  // of the weights it goes on from
  std::string base_hash_;                                                                // of the model beneath adapters
  std::optional<Peak> peak_;                                                             // on the first rank
  Waits waits_;                                 // in the last step whose waits were watched
  OwnTime own_time_;
  std::optional<telemetry::StragglerWatch> straggler_watch_;
  int told_stragglers_ = 0;                     // how often ranks told each other about stragglers
  std::string timeline_;        // of snapshots; the same on all ranks
  int timelines_ = 0;           // that this process has begun
  std::optional<SnapshotPace> pace_;
  struct SnapshotCost {
    std::int64_t step = 0;
    double held_s = 0;  // how long training waited for it
  };
  std::optional<SnapshotCost> snapshot_cost_;  // of the last snapshot, until pace_ has received it
  optim::Requests asked_;                      // by this rank in the last step
  double step_s_ = 0;                          // how long the last step took
  std::vector<checkpoint::RemoteCheckpoint> in_remote_;  // on the first rank: what was there at the start, highest step first
  std::unique_ptr<checkpoint::RemoteCopies> remote_;     // on the first rank, with checkpoint.remote
  // The last members, because their threads use the others until they end.
  std::unique_ptr<checkpoint::Writer> writer_;
  std::unique_ptr<checkpoint::Snapshots> snapshots_;
};

}  // namespace octet::train
