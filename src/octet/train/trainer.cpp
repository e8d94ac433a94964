#include "octet/train/trainer.h"

#include <fmt/format.h>

#include <algorithm>

#include "octet/base/directory.h"
#include "octet/base/file.h"
#include "octet/base/log.h"
#include "octet/base/retry.h"
#include "octet/checkpoint/model_dir.h"
#include "octet/checkpoint/steps.h"
#include "octet/device/cuda/cuda_device.h"
#include "octet/models/registry.h"
#include "octet/optim/schedule.h"
#include "octet/telemetry/attempts.h"
#include "octet/telemetry/format.h"
#include "octet/train/base_model.h"
#include "octet/train/disk_space.h"
#include "octet/train/entries.h"
#include "octet/train/initial_loss.h"
#include "octet/train/model_files.h"
#include "octet/train/restore.h"
#include "octet/train/setup.h"
#include "octet/train/signals.h"
#include "octet/train/sources.h"
#include "octet/train/tokenizer.h"
#include "octet/train/version.h"

namespace octet::train {
namespace {
namespace fs = std::filesystem;
using telemetry::Origin;
using telemetry::Phase;

optim::Schedule schedule_of(const Config& config, std::int64_t steps) {
  return {.lr = config.optimizer.lr,
          .steps = steps,
          .warmup_steps = config.lr_scheduler.warmup_steps,
          .decay = optim::parse_decay(config.lr_scheduler.decay),
          .min_lr_factor = config.lr_scheduler.min_lr_factor};
}

// The options of a run's engine, with health samples included.
EngineOptions run_options(const Config& config, const parallel::Mesh& mesh, int rank, HealthWatch& health) {
  EngineOptions options = engine_options(config, recipe_of(config, device_of(config)));
  options.layout = layout_of(config, mesh);
  options.rank = rank;
  if (config.metrics.health_freq > 0 && options.recipe.is_fp8()) {
    health.set_gated(gated_linears(options));
    if (options.recipe.w.tile == ScaleTile::mx_1x32) health.watch_norms();
    options.watch = &health;
  }
  return options;
}

bool every(std::int64_t interval, std::int64_t step) { return interval > 0 && step % interval == 0; }

}  // namespace

MemoryPlan measure_run(const Config& config, const parallel::Mesh& mesh, int rank) {
  HealthWatch health;
  const DeviceKind device = device_of(config);
  MemoryPlan plan = measure(run_options(config, mesh, rank, health), device);
  if (!config.checkpoint.async) plan.snapshot = 0;
  if (plan.snapshot > 0 && device == DeviceKind::cuda) plan.snapshot += kStagingBytes;  // of the stream that copies
  return plan;
}

Trainer::Trainer(const TrainerOptions& options)
    : options_(options),
      config_(options_.config),
      world_(options_.world ? *options_.world : alone_.emplace(comm::RankEnvironment{}, config_)),
      anomaly_(parse_spike(config_.anomaly.spike).value_or(SpikeRule{})) {
  page_.enter(Phase::preparing);
  device_ = device_of(config_);
  engine_options_ = run_options(config_, world_.mesh(), world_.rank(), health_);
  plan_ = measure_run(config_, world_.mesh(), world_.rank());
  job_has_trained_ = job_has_trained();
  if (world_.is_first()) {
    if (job_has_trained_) wait_for_room(config_.run.output_dir, config_.checkpoint.retry_s);
    const telemetry::OwnAttempt attempt = telemetry::own_attempt();
    lock_.emplace(config_.run.output_dir, checkpoint::RunLockTimes{.retry_s = config_.checkpoint.retry_s},
                  checkpoint::LockAttempt{.job = attempt.job, .number = attempt.number});
    retry(config_.checkpoint.retry_s, [&] { checkpoint::put_back_replaced(checkpoints()); });
    for (const char* file : {"run.json", "remote.json", "remote-abandoned.json"})
      remove_interrupted_writes(fs::path(config_.run.output_dir) / file);
    for (const char* folder : {"model", "adapter"}) remove_interrupted_writes_in(fs::path(config_.run.output_dir) / folder);
  }
  dataset_ = std::make_unique<data::Dataset>(dataset_options(config_, engine_options_.model.vocab));
  for (const std::string& line : packing_lines(*dataset_)) log_info(line);
  held_out_ = std::make_unique<HeldOut>(config_, *dataset_);
  best_.emplace(config_.evaluation, held_out_->measure());
  demand(!best_->acts() || held_out_->any(), ExitCode::config, config_.file, ": evaluation.",
         config_.evaluation.keep_best ? "keep_best" : "patience",
         " needs held-out text; set data.split, or add [[evaluation.source]] with name and path");
  if (world_.is_first()) {  // which writes model directories
    const std::string tokenizer = tokenizer_of_run(config_, engine_options_.model);
    check_tokenizer(*dataset_, tokenizer);
    held_out_->check_tokenizers(tokenizer);
    warn_of_untrained_ids(*dataset_, engine_options_.model.vocab);
    engine_options_.model = with_answer_ends(with_token_ids(engine_options_.model, tokenizer), config_, *dataset_, tokenizer);
    if (!job_has_trained_) {  // else an earlier attempt has compared them
      dataset_->verify_once();
      held_out_->verify_once();
    }
  }
  world_.wait_for_first("the comparison of the corpus with its sums");
  accumulation_ = accumulation_of(config_, world_.mesh().data_coordinates());
  find_checkpoint();
  steps_ = steps_of(config_, *dataset_, continuation_);
  demand(options_.until <= steps_, ExitCode::config, "--until ", options_.until, ": the run has ",
         telemetry::format_count(steps_, "step"), ". Leave --until out to train all of them");
  if (!resumed_ && has_initial_loss() && engine_options_.recipe.is_fp8() && has_room_for_bf16()) {
    initial_loss_bf16_ = initial_loss_in_bf16(engine_options_, world_.device(), world_.groups(), held_out_->deciding(), config_);
  }
  start_engine();
  for (const std::string& line : unread_text(*dataset_)) log_shared_warning(line);
  data::LoaderOptions loads{.coordinate = world_.mesh().data_coordinate(world_.rank()),
                            .coordinates = world_.mesh().data_coordinates(),
                            .micro_batch_size = config_.training.micro_batch_size};
  loader_ = std::make_unique<data::Loader>(*dataset_, loads);
  if (config_.health.sdc_every == 0) return;
  if (loads.coordinates == 1) log_warning("health.sdc_every: one data-parallel rank has no other to compare what it computes with");
  loads.coordinate = 0;
  common_loader_ = std::make_unique<data::Loader>(*dataset_, loads);
}

void Trainer::start_engine() {
  if (engine_) engine_->close();
  engine_.reset();  // before its successor takes memory
  engine_ = std::make_unique<Engine>(engine_options_, world_.device(), world_.groups());
  demand((resumed_ && !config_.lora) || !init_from_is_gone(config_), ExitCode::data, config_.model.init_from,
         "/config.json: No such file; a run that begins without a checkpoint begins with model.init_from",
         config_.lora ? ", and a run with [lora] always does" : "");
  if (config_.lora) base_hash_ = hash_of_base(config_);
  if (config_.lora && resumed_) check_base(resumed_->meta(), base_hash_, resumed_->path().string());
  if (!resumed_) {
    begin_model(*engine_, config_);
  } else if (config_.lora) {
    begin_base(*engine_, config_);
  } else {
    engine_->initialise(config_.run.seed);
  }
  engine_->tune(gemm_tuning());
}

bool Trainer::continues_weights() const {
  return !config_.model.init_from.empty() && checkpoint::has_weights(config_.model.init_from);
}

nlohmann::json Trainer::meta() const {
  return {{"octet", version()},
          {"commit", commit()},
          {"recipe", engine_options_.recipe.name},
          {"product_kernels", product_kernels(device_)},
          {"cursor", loader_->position()},
          {"stretches", to_json(continuation_.stretches)},
          {"changes", continuation_.record},
          {"steps", steps_},
          {"sources", sources_json(*dataset_)},
          {"seed", config_.run.seed},
          {"tokens_seen", tokens_seen_},
          {"rollbacks", rollbacks_},
          {"anomaly", anomaly_.state()},
          {"initial_eval_loss", initial_loss_},
          {"initial_eval_loss_bf16", initial_loss_bf16_},
          {"best", best_->state()},
          {"lora_base", base_hash_},
          {"demoted", demoted_},
          {"in_danger", in_danger_},
          {"mesh",
           {{"replicate", world_.mesh().size(parallel::Axis::replicate)},
            {"shard", world_.mesh().size(parallel::Axis::shard)},
            {"context", world_.mesh().size(parallel::Axis::context)},
            {"tensor", world_.mesh().size(parallel::Axis::tensor)},
            {"expert", world_.mesh().expert()},
            {"pipeline", world_.mesh().size(parallel::Axis::pipeline)}}},
          {"config", to_json(config_)},
          {"toml", print_config(config_)},
          {"model", models::config_json(engine_options_.model, compute_dtype(engine_options_.recipe))}};
}

bool Trainer::interval_saves() const { return every(config_.checkpoint.interval, step_); }
bool Trainer::best_saves() const { return config_.evaluation.keep_best && best_->step() == step_; }

void Trainer::save() {
  if (saved_step_ == step_) return;
  engine_->settle();
  compare_ranks();  // so that a checkpoint does not keep what a faulty machine has changed
  models::Decoder& model = engine_->model();
  if (world_.is_first()) {  // the writer is idle
    best_->forget_deleted([&](std::int64_t step) {
      try {
        return path_exists(checkpoint_folder(step));
      } catch (const SystemError&) {  // a checkpoint that cannot be looked at may still be there
        return true;
      }
    });
    info_.best_step = best_->step();
    info_.best_eval_loss = best_->loss();
  }
  writer_->save(step_, engine_->stream(),
                written_entries(model.parameters(), model.scales(), engine_->optimizer(), world_.groups()), meta(),
                best_->checkpoint());
  saved_step_ = step_;
  save_pending_ = config_.checkpoint.async;
  if (!save_pending_) failed_saves_ = 0;
}

std::uint64_t Trainer::checkpoint_bytes() const { return bytes_of_checkpoint(engine_->entries()); }

void Trainer::load(const checkpoint::Reader& reader) {
  const nlohmann::json& meta = reader.meta();
  models::Decoder& model = engine_->model();
  const std::vector<Change> changed = changes_since(meta, config_, *dataset_, reader.path().string());
  scales_are_new_ = changes_scales(changed);
  if (scales_are_new_) model.scales().reset(engine_->stream());
  const recipes::ScaleState none(engine_options_.recipe);
  model.units().wait_for_states(engine_->stream());
  reader.load(engine_->stream(), read_entries(model.parameters(), scales_are_new_ ? none : model.scales(), &engine_->optimizer()),
              scales_are_new_ ? std::vector<std::string>{"fp8.*"} : std::vector<std::string>(),
              changes(changed, "recipe") ? checkpoint::OtherDtype::convert : checkpoint::OtherDtype::refuse);
  engine_->refresh();
  step_ = reader.step();
  saved_step_ = from_memory_ ? -1 : step_;
  tokens_seen_ = meta.at("tokens_seen").get<std::int64_t>();
  anomaly_.restore(meta.at("anomaly"));
  if (changes_losses(changed)) anomaly_.begin_window();  // a loss that differs for this reason is not a spike
  in_danger_ = meta.value("in_danger", std::vector<std::string>());
  const auto known = [&](const char* name) {  // null, or absent in checkpoints of earlier versions
    const nlohmann::json loss = meta.value(name, nlohmann::json());
    return loss.is_number() ? loss.get<double>() : telemetry::kUnknown;
  };
  initial_loss_ = known("initial_eval_loss");
  initial_loss_bf16_ = known("initial_eval_loss_bf16");
}

bool Trainer::resume() {
  const std::optional<checkpoint::Reader> reader = std::exchange(resumed_, std::nullopt);
  if (reader) load(*reader);
  if (reader && !world_.first_says("whether run.output_dir holds the checkpoint", continued_from_ == step_)) saved_step_ = -1;
  set_old_history_aside();
  // What came after the chosen checkpoint is not lost: its metrics and its model are set aside as after a rollback.
  if (world_.first_says("whether later steps are given up", missing_step_ > 0 && !old_history_))
    set_abandoned_steps_aside(missing_step_);
  set_local_copies_aside();
  if (world_.is_first()) keep_tokenizer(config_, engine_options_.model, *dataset_);
  if (!reader) return false;
  bool keeps_as_before = restore_best(reader->meta());
  loader_->seek(continuation_.cursor);
  rollbacks_ = reader->meta().at("rollbacks").get<std::int64_t>();
  log_info(concat("resuming after step ", step_, " from ", from_memory_ && !from_local_dir_ ? "memory" : reader->path().string()));
  if (init_from_is_gone(config_)) {
    log_info(concat("  model.init_from = ", config_.model.init_from,
                    path_exists(config_.model.init_from) ? " is no model directory" : " is not there any more",
                    "; the checkpoint holds the whole model"));
  }
  const std::string kernels = product_kernels(device_), kernels_before = reader->meta().value("product_kernels", kernels);
  if (kernels != kernels_before && !kernels.empty() && !kernels_before.empty())
    log_info(
        concat("  changed since then: products on ", kernels_before, " -> on ", kernels, ", which round sums in another order"));
  for (const Difference& d : differences(Json(reader->meta().at("config")), config_)) {
    keeps_as_before = keeps_as_before && !d.key.starts_with("checkpoint.keep_") && d.key != "evaluation.keep_best";
    if (d.key == "run.output_dir") continue;
    const char* unread = d.key == "model.init_from" && !config_.lora
                             ? "; its weights are not read, because the run goes on from the checkpoint's"
                             : "";
    log_info(concat("  changed since then: ", d.key, ": ", in_words(d.before), " -> ", in_words(d.now), unread));
  }
  if (step_ >= steps_) {
    log_info(concat("  nothing is left to train: the run is at step ", telemetry::format_count(step_), " of ",
                    telemetry::format_count(steps_),
                    ". To train longer, raise training.steps or training.epochs. To train from other weights, give another "
                    "run.output_dir, or --resume=none and --run.set_aside=true"));
  }
  for (const std::string& line : consequences(continuation_, *dataset_)) log_info("  " + line);
  return keeps_as_before;
}

// The state goes back, but the data does not, so the batches that led here are not seen again.
void Trainer::roll_back(Anomaly::Verdict verdict) {
  page_.enter(Phase::loading);
  const std::int64_t failed = step_;
  const std::string reason = anomaly_.reason();
  tolerate_failed_save([&] { wait_for_writer(); });
  world_.barrier("written");
  const auto open_before = [&](std::int64_t step) {
    return checkpoint::Reader::open_latest(checkpoints(), log_shared_warning, world_.checkpoint_ranks(),
                                           config_.checkpoint.retry_s, step);
  };
  // Skipped steps change nothing, but a checkpoint saved while losses were high has learnt from the same batches.
  auto reader = open_before(verdict == Anomaly::Verdict::spike ? failed - anomaly_.steps_of_reason() + 1 : failed + 1);
  if (reader && reader->step() == went_back_to_) {  // a rollback to it has led here again
    if (auto older = open_before(reader->step())) reader = std::move(older);
  }
  if (!reader && verdict == Anomaly::Verdict::spike) {
    anomaly_.begin_window();
    return log_shared_warning(
        concat("step ", failed, ": ", reason, "; nothing to go back to: no checkpoint from before it. Training continues"));
  }
  demand(rollbacks_ < config_.anomaly.max_rollbacks, ExitCode::not_finite, "step ", failed, ": ", reason, ", and all ",
         config_.anomaly.max_rollbacks, " rollbacks of anomaly.max_rollbacks are used up");
  ++rollbacks_;
  const std::string count = concat("rollback ", rollbacks_, " of ", config_.anomaly.max_rollbacks);
  if (!reader) {
    anomaly_.begin_row();
    return log_shared_warning(concat("step ", failed, ": ", reason,
                                     "; nothing to go back to: no checkpoint yet. Training continues (counts as ", count, ")"));
  }
  const std::size_t demoted_before = demoted_.size();
  const std::string remedy = demote();
  if (demoted_.size() > demoted_before) {
    resumed_ = std::move(reader);  // so that start_engine() builds the engine of a resumed run
    start_engine();
    reader = std::exchange(resumed_, std::nullopt);
  }
  from_memory_ = from_local_dir_ = false;
  load(*reader);
  calibrate();
  anomaly_.begin_row();
  went_back_to_ = step_;
  page_.step = step_;
  page_.start_step = std::min(page_.start_step.load(), step_);
  set_abandoned_steps_aside(failed);
  info_.checkpoint_step = step_;
  info_.exported_step = 0;
  restore_best(reader->meta());
  retry(config_.checkpoint.retry_s, [&] { recorder_->rewind(step_); });
  begin_snapshots();
  // A restart must not miss the checkpoints that have moved.
  if (!snapshots_) retry(config_.checkpoint.retry_s, [&] { recorder_->write_run_info(info_); });
  log_shared_warning(concat("step ", failed, ": ", reason, "; back to step ", step_, ", past the batches up to sample ",
                            loader_->position(), " (", count, ")", remedy));
}

std::string Trainer::demote() {
  if (config_.anomaly.remedy != "demote") return "";
  auto linears =
      parse_json(world_.from_first("the linears to demote", nlohmann::json(in_danger_).dump()), "the linears to demote")
          .get<std::vector<std::string>>();
  in_danger_.clear();
  // A checkpoint from before the last rollback also names linears that this rollback demoted.
  std::erase_if(linears, [&](const std::string& name) {
    return std::find(demoted_.begin(), demoted_.end(), name) != demoted_.end();
  });
  if (linears.empty())
    return "; the last health sample found no linear in FP8 with an input or weight in danger, so no linear is demoted";
  Config other = config_;
  other.precision.skip.insert(other.precision.skip.end(), linears.begin(), linears.end());
  const bool fits = measure_run(other, world_.mesh(), world_.rank()).total() <= plan_.total() + free_memory();
  if (!world_.first_says("whether BF16 fits", fits))
    return fmt::format("; no memory is left to compute in BF16: {}", fmt::join(linears, ", "));
  skip(linears);
  return fmt::format("; from now on in BF16: {}", fmt::join(linears, ", "));
}

void Trainer::skip(const std::vector<std::string>& linears) {
  if (linears.empty()) return;
  demoted_.insert(demoted_.end(), linears.begin(), linears.end());
  options_.config.precision.skip.insert(options_.config.precision.skip.end(), linears.begin(), linears.end());
  models::DecoderConfig model = engine_options_.model;  // it knows the tokenizer's ids
  engine_options_ = run_options(config_, world_.mesh(), world_.rank(), health_);
  engine_options_.model = std::move(model);
  plan_ = measure_run(config_, world_.mesh(), world_.rank());
}

// One optimizer step: the walk of docs/walk.md.
kernels::StepScalars Trainer::step(Watch watch) {
  const Clock::time_point start = Clock::now();
  world_.at_step(step_);
  if (watch.waits) engine_->model().units().start_waits();
  engine_->set_step(static_cast<std::uint32_t>(step_ + 1));
  engine_->begin_step(accumulation_);
  for (std::int64_t micro = 0; micro < accumulation_; ++micro) {
    const data::Batch batch = loader_->next();
    const bool watched = watch.health && micro == 0;
    engine_->forward_backward(batch, watched ? &health_ : nullptr);
    if (watched) engine_->observe_weights(health_);
    tokens_seen_ += static_cast<std::int64_t>(batch.tokens.size()) * world_.mesh().data_coordinates();
  }
  ++step_;
  asked_ = {.stop = StopSignals::requested() != nullptr, .snapshot = wants_snapshot(), .busy = snapshots_ && snapshots_->busy(),
            .failed = snapshots_ && snapshots_->failed()};
  engine_->apply(optim::learning_rate(schedule_of(config_, steps_), step_), static_cast<std::uint32_t>(step_), asked_, [this] {
    writer_->wait_for_snapshot();
    wait_for_snapshot();
  });
  const kernels::StepScalars scalars = engine_->optimizer().read(engine_->stream());
  engine_->check_ranks();
  if (watch.waits) waits_ = engine_->model().units().take_waits();  // the stream is empty
  step_s_ = seconds_since(start);
  if (watch.waits) own_time_.add(step_s_ - waits_.all);
  return scalars;
}

std::string Trainer::how_to_go_on(std::string_view how) const {
  if (options_.resume != "auto" && !options_.label.empty())
    return concat("; `octet compare` begins anew and moves this to ", config_.run.output_dir, "/history");
  return concat("; ", how, "the same command", options_.resume == "auto" ? "" : " with --resume auto", " continues from there");
}

void Trainer::end_together() {
  engine_->close();
  world_.barrier("done");
}

ExitCode Trainer::run() {
  const StopSignals signals;
  try {
    const ExitCode code = train_to_end();
    record_end(code);
    return code;
  } catch (const Error& error) {
    record_end(error.code());
    throw;
  } catch (...) {
    record_end(ExitCode::internal);
    throw;
  }
}

ExitCode Trainer::train_to_end() {
  const fs::path directory = config_.run.output_dir;
  page_.enter(Phase::loading);
  const bool keeps_as_before = resume();
  page_.start_step = step_;
  page_.origin = from_local_dir_ ? Origin::local_disk : from_memory_ ? Origin::memory : step_ > 0 ? Origin::storage : Origin::beginning;
  page_.saved_step = newest_checkpoint();
  if (world_.is_first())
    check_space(config_, checkpoint_bytes(), step_, steps_, job_has_trained_ ? NoRoom::warn : NoRoom::refuse);
  writer_ = std::make_unique<checkpoint::Writer>(
      checkpoint::WriterOptions{.root = checkpoints(),
                                .keep_latest_k = config_.checkpoint.keep_latest_k,
                                .keep_every = config_.checkpoint.keep_every,
                                .mode = config_.checkpoint.async ? checkpoint::WriteMode::behind : checkpoint::WriteMode::now,
                                .ranks = world_.checkpoint_ranks(),
                                .may_publish =
                                    [this] {
                                      recorder_->sync();  // a checkpoint must not be ahead of its metrics
                                      lock_->renew();
                                    },
                                .published =
                                    [this](std::int64_t step) {
                                      record_checkpoint(step);
                                      copy_to_remote(step);
                                    },
                                .in_use = [this](std::int64_t step) { return remote_ && remote_->uses(step); }});
  copy_to_remote(newest_checkpoint());
  if (keeps_as_before) {
    writer_->delete_surplus(step_, best_->checkpoint());
  } else if (step_ > 0) {
    warn_of_deletion();
  }
  const bool exported = is_exported();
  begin_snapshots();
  calibrate();
  if (step_ == 0 && has_initial_loss()) evaluate_initial();
  recorder_ = std::make_unique<telemetry::Recorder>(
      telemetry::Recorder::Options{.directory = directory,
                                   .rank = world_.rank(),
                                   .last_step = step_ > 0 ? std::optional(step_) : std::nullopt,
                                   .tensorboard = config_.metrics.tensorboard,
                                   .experts = engine_options_.model.experts > 0,
                                   .console = options_.console,
                                   .total_steps = steps_,
                                   .worker = telemetry::worker_of(name_of(device_))});
  if (world_.is_first()) {
    if (engine_options_.watch) warn_of_hidden_layers(world_.mesh());
    info_ = run_info();
    info_.exported_step = exported ? step_ : 0;
    recorder_->write_run_info(info_);
    peak_ = peak_of(info_.device_name);
  }
  save_what_was_due();
  const std::int64_t last = options_.until > 0 ? std::min(options_.until, steps_) : steps_;
  meter_ = std::make_unique<telemetry::StepMeter>(telemetry::StepMeter::Options{.total_steps = last, .processes = world_.size()});

  while (step_ < last && !best_->is_stale()) {
    if (lock_) lock_->check();
    const std::int64_t next = step_ + 1;
    const bool first_or_last = next == 1 || next == steps_;
    const bool samples = config_.metrics.health_freq > 0 && (every(config_.metrics.health_freq, next) || first_or_last);
    const bool sample = engine_options_.watch && samples;
    const bool evaluates = every(config_.evaluation.interval, next) || next == steps_;
    const bool logs = every(config_.metrics.log_freq, next) || next == 1 || sample || evaluates;
    const std::int64_t tokens_before = tokens_seen_;
    page_.enter(Phase::training);
    // On a CPU waits cost nothing to measure, so own times are means over all steps.
    const bool waits = logs || (device_ == DeviceKind::cpu && world_.size() > 1);
    const kernels::StepScalars scalars = step({.health = sample, .waits = waits});
    page_.finish_step(step_);
    meter_->add_data_time(loader_->take_wait_s());
    meter_->add_step(tokens_seen_ - tokens_before, config_.training.global_batch_size);

    if (every(config_.health.replicas_every, step_)) compare_replicas();
    if (every(config_.health.sdc_every, step_)) compare_products();

    Anomaly::Verdict verdict = Anomaly::Verdict::fine;
    if (scalars.token_count == 0) {  // the optimizer changed nothing, and there is no loss to judge
      anomaly_.observe_empty();
      log_shared_warning(concat("step ", step_, ": no token of its batch is trained on; skipped"));
    } else {
      verdict = anomaly_.observe(scalars.mean_loss(), scalars.found_inf != 0.0f);
    }
    if (verdict == Anomaly::Verdict::spike || verdict == Anomaly::Verdict::not_finite) {
      const telemetry::PausedMeter paused(*meter_);
      compare_ranks();  // a rollback would hide that a machine is the cause
      roll_back(verdict);
      if (step_ < next) {
        health_.take(step_);
        health_.take_attention(step_);
        continue;
      }
    }
    if (anomaly_.forgives() && rollbacks_ > 0) --rollbacks_;
    if (verdict == Anomaly::Verdict::skipped)
      log_shared_warning(concat("step ", step_, ": loss or gradient not finite; skipped"));

    if (options_.progress) {
      options_.progress({.step = step_,
                         .steps = steps_,
                         .loss = scalars.mean_loss(),
                         .tokens_per_s = meter_->interval().tokens_per_s_per_process,
                         .worker = telemetry::worker_of(name_of(device_)),
                         .eta_s = meter_->eta_s(step_)});
    }

    HeldOut::Losses held_out;
    if (evaluates) {
      page_.enter(Phase::evaluating);
      held_out = evaluate_step();
    }
    if (logs) log(scalars, held_out, sample);
    if (samples && engine_options_.model.experts > 0) log_experts();
    // Several ranks stop after the same step: one of which they all know that a rank had been asked when its optimizer was
    // enqueued.
    const char* stop = StopSignals::requested();
    const optim::Requests asked = world_.size() > 1 ? engine_->requests() : asked_;
    if (world_.size() > 1) stop = !asked.stop ? nullptr : stop ? stop : "another rank was asked to stop";
    if ((interval_saves() || best_saves()) && step_ < last && !stop) {
      const telemetry::PausedMeter paused(*meter_);
      if (!interval_saves()) best_->save_extra();
      page_.enter(Phase::saving);
      save_if_possible();
    }
    if (stop && step_ < steps_) {
      page_.enter(Phase::saving);
      save_for_good();
      log_info(concat(stop, ": saved step ", telemetry::format_count(step_), " of ", telemetry::format_count(steps_), " in ",
                      checkpoints().string(), how_to_go_on()));
      end_together();
      wait_for_remote();
      // The first rank that ends with this code gives the others a few seconds, so none ends while rank 0 still copies.
      world_.wait_for_first("the copy of the last checkpoint");
      return ExitCode::preempted;
    }
    if (asked.snapshot && step_ < last) {
      if (asked.failed) snapshots_->give_up_last();
      take_snapshot();
    }
  }
  const bool pauses = step_ < steps_ && !best_->is_stale();
  if (step_ < steps_ && !pauses) log_info(why_it_ends());
  page_.enter(Phase::saving);
  save_for_good();
  if (pauses) {
    log_info(concat("--until ", options_.until, step_ > options_.until ? ": the run is beyond it, at step " : ": saved step ",
                    telemetry::format_count(step_), " of ", telemetry::format_count(steps_), " in ", checkpoints().string(),
                    how_to_go_on("without --until ")));
    end_together();
    demand_remote();
    return ExitCode::done;
  }
  page_.enter(Phase::exporting);
  const std::string not_finite = not_finite_weight(*engine_);
  if (exported && step_ == page_.start_step) {  // somebody may have changed the files since
    log_info(concat(exported_folder().string(), ": is of step ", telemetry::format_count(step_),
                    " already and stays as it is; to export it again, remove it"));
  } else if (exports() && not_finite.empty()) {
    export_model();
  }
  end_together();
  demand_remote();
  if (recorder_->lost() > 0)
    log_warning(concat("metrics: ", telemetry::format_count(recorder_->lost(), "record"), " could not be written"));
  judge_end(not_finite);
  has_exported_ = true;
  return ExitCode::done;
}

}  // namespace octet::train
