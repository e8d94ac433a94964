// What a run records about itself.
#include <chrono>
#include <cmath>

#include "octet/base/log.h"
#include "octet/base/utc.h"
#include "octet/telemetry/attempts.h"
#include "octet/telemetry/format.h"
#include "octet/telemetry/skipped_steps.h"
#include "octet/train/trainer.h"
#include "octet/train/version.h"

namespace octet::train {

namespace fs = std::filesystem;

namespace {
bool lacks_memory(const Error& failure) {
  return std::string_view(failure.what()).find(checkpoint::kOutOfMemory) != std::string_view::npos;
}
}  // namespace

void Trainer::log(const kernels::StepScalars& scalars, const HeldOut::Losses& held_out, bool sampled) {
  telemetry::StepMetrics m;
  const telemetry::StepMeter::Interval interval = meter_->take();
  m.step = step_;
  m.loss = scalars.mean_loss();
  m.grad_norm = scalars.grad_norm;
  m.lr = static_cast<double>(scalars.learning_rate);
  m.tokens_seen = tokens_seen_;
  m.step_time_s = interval.step_time_s;
  m.data_time_s = interval.data_time_s;
  m.tokens_per_s = interval.tokens_per_s;
  m.tokens_per_s_per_gpu = interval.tokens_per_s_per_process;
  m.tflops_per_gpu = interval.tokens_per_s_per_process * engine_options_.flops_per_token() * 1e-12;
  m.fp8_flop_share = plan_.step.flops > 0 ? plan_.step.fp8_flops / plan_.step.flops : 0.0;
  if (peak_) {
    m.mfu = m.tflops_per_gpu * 1e12 / peak_->bf16_flops;
    m.mfu_fp8 = m.tflops_per_gpu * 1e12 / peak_->mixed_flops(m.fp8_flop_share);
  }
  m.memory_peak_gib = static_cast<double>(engine_->device().memory().total_peak) * 0x1p-30;
  m.skipped_steps = anomaly_.skipped_steps();
  m.samples_per_s = interval.samples_per_s;
  m.eta_s = meter_->eta_s(step_);
  m.comm_exposed_s = waits_.all - waits_.stages;
  if (world_.mesh().stages().count > 1) m.pipeline_bubble_s = engine_->mean_over_ranks(waits_.stages);
  if (const models::DecoderConfig& model = engine_options_.model; model.experts > 0) {
    const Engine::RouterLosses router = engine_->router_losses(Engine::Routed::step);
    const auto terms = static_cast<double>(config_.training.global_batch_size * config_.training.seq_len * model.mixtures());
    m.expert_balance = router.balance / terms / static_cast<double>(model.experts_per_token);
    m.router_z = router.z / terms;
  }
  if (!std::isnan(held_out.deciding)) m.eval_loss = held_out.deciding;
  m.eval_losses = held_out.by_name;
  if (sampled) {
    const std::vector<telemetry::HealthSample> samples = health_.take(step_);
    double flushed = 0, saturated = 0, of_linears = 0;
    for (const telemetry::HealthSample& s : samples) {
      if (!s.of_linear()) continue;
      flushed += s.flushed_pct;
      saturated += s.saturated_pct;
      ++of_linears;
    }
    if (of_linears > 0) {
      m.fp8_underflow_pct = flushed / of_linears;
      m.fp8_saturated_pct = saturated / of_linears;
    }
    recorder_->write(samples);
    in_danger_ = linears_to_demote(samples);
    recorder_->write(health_.take_attention(step_));
  }
  page_.loss = m.loss;
  page_.tokens = m.tokens_seen;
  page_.step_s = m.step_time_s;
  recorder_->write(m);
  watch_stragglers();
}

bool Trainer::exports() const {
  const std::int64_t skipped = anomaly_.skipped_steps();
  return !telemetry::skipped_most(skipped, step_) && skipped + anomaly_.empty_steps() < step_;
}

void Trainer::judge_end(const std::string& not_finite) const {
  const std::int64_t skipped = anomaly_.skipped_steps(), empty = anomaly_.empty_steps();
  const std::string unchanged = skipped + empty == step_ ? " that the run began with. " : ". ",
                    no_model = concat(", so no model is exported; ", checkpoints().string(), " holds the weights", unchanged);
  if (empty > 0) {
    const std::string text = telemetry::text_of_empty(empty, step_),
                      remedy =
                          "`octet data inspect PREFIX --tokens` shows what is trained on; with a longer training.seq_len a "
                          "sequence may reach it";
    demand(empty < step_, ExitCode::data, text, no_model, remedy);
    log_shared_warning(concat(text, ". ", remedy));
  }
  const std::string text = telemetry::text_of_skipped(skipped, step_),
                    remedy = skipped == step_
                                 ? "Look for numbers that are not finite in the weights or the settings that it began with"
                                 : "Lower optimizer.lr or lengthen lr_scheduler.warmup_steps";
  demand(exports(), ExitCode::not_finite, text, no_model, remedy);
  demand(not_finite.empty(), ExitCode::not_finite, not_finite, " has values that are NaN or infinite", no_model,
         "Lower optimizer.lr and go on from an earlier checkpoint with --resume DIR --run.set_aside=true, or begin anew");
  if (skipped == 0) return;
  log_shared_warning(concat(text, ". A few of them do no harm. If there are many: ", remedy));
}

void Trainer::log_experts() {
  const std::vector<double> loads = engine_->expert_loads_of_step();
  const auto count = static_cast<std::ptrdiff_t>(engine_options_.model.experts);
  std::vector<telemetry::ExpertSample> samples;
  auto next = loads.begin();
  for (const std::string& layer : engine_->model().mixtures()) {
    samples.push_back({.step = step_, .layer = layer, .chosen = std::vector<std::int64_t>(next, next + count)});
    next += count;
  }
  recorder_->write(samples);
  for (const std::string& sentence : experts_.observe(samples)) log_shared_warning(sentence);
}

telemetry::RunInfo Trainer::run_info() const {
  telemetry::RunInfo info;
  info.name = options_.label.empty() ? config_.run.name : options_.label;
  info.recipe = engine_options_.recipe.name;
  info.repeat_of = options_.repeat_of;
  info.device = std::string(name_of(device_));
  info.device_name = device_name(device_);
  info.model = !config_.model.config.empty()      ? config_.model.config
               : !config_.model.init_from.empty() ? config_.model.init_from
                                                  : config_.run.name;
  info.parameters = engine_options_.model.parameters();
  info.processes = world_.size();
  info.layers = engine_options_.model.layers;
  info.seq_len = config_.training.seq_len;
  info.micro_batch_size = config_.training.micro_batch_size;
  info.global_batch_size = config_.training.global_batch_size;
  info.tokens_per_step = config_.training.global_batch_size * config_.training.seq_len;
  info.steps = steps_;
  info.until = options_.until;
  info.seed = static_cast<std::int64_t>(config_.run.seed);
  info.lr = config_.optimizer.lr;
  for (const SourceConfig& source : config_.data.source) {
    info.data += (info.data.empty() ? "" : ", ") + source.path + (source.split == "auto" ? "" : " (" + source.split + ")");
  }
  for (const EvaluationSourceConfig& source : config_.evaluation.source)
    info.data += concat(", ", source.path, " (evaluation ", source.name, ")");
  info.initial_eval_loss = initial_loss_;
  info.initial_eval_loss_bf16 = initial_loss_bf16_;
  info.version = version();
  info.commit = commit();
  info.started = utc_now();
  info.first_started = first_start().value_or(info.started);
  const telemetry::OwnAttempt attempt = telemetry::own_attempt();
  info.job = attempt.job;
  info.attempt = attempt.number;
  info.changes = text_of_record(continuation_.record);
  // If the job is lost before it saves again, the next start must not take the run for a new one.
  info.checkpoint_step = has_no_checkpoint_ ? before_->checkpoint_step : newest_checkpoint();
  info.timeline = timeline_;
  info.best_step = best_->step();
  info.best_eval_loss = best_->loss();
  info.versions.text = versions_json(device_);
  info.config.text = to_json(config_).dump();
  return info;
}

void Trainer::record_end(ExitCode code) {
  writer_.reset();  // its thread owns info_
  if (!recorder_ || !world_.is_first()) return;
  info_.ended = utc_now();
  info_.code = static_cast<int>(code);
  info_.skipped_steps = anomaly_.skipped_steps();
  try {
    lock_->renew();  // run.json may be another run's by now
    recorder_->write_run_info(info_);
  } catch (const Error& error) {
    log_warning(concat(error.what(), "; run.json does not say how this run ended"));
  }
}

void Trainer::record_checkpoint(std::int64_t step) {
  info_.checkpoint_step = step;
  page_.saved_step = step;
  page_.saved_ns = telemetry::monotonic_ns();
  info_.lost_records = recorder_->lost();
  try {
    recorder_->write_run_info(info_);
  } catch (const Error& error) {
    log_warning(concat(error.what(), "; the checkpoint of step ", step, " is saved"));
  }
}

std::string Trainer::how_to_mend(const Error& failure) const {
  if (!world_.is_first()) return "";
  return concat(lacks_memory(failure) ? "" : "; make room or repair the disk", info_.checkpoint_step > 0 ? how_to_go_on() : "");
}

std::string Trainer::room_for_saves(const Error& failure) const {
  if (!world_.is_first()) return "";
  if (lacks_memory(failure)) return config_.checkpoint.async ? "; checkpoint.async = false needs no snapshot in its memory" : "";
  std::error_code unknown;
  const fs::space_info space = fs::space(config_.run.output_dir, unknown);
  std::string text = concat("; a checkpoint takes ", telemetry::format_bytes(checkpoint_bytes()),
                            unknown ? "" : concat(", ", telemetry::format_bytes(space.available), " are free"));
  if (info_.checkpoint_step == 0) return text + ", and none is there yet";
  const fs::file_time_type written = fs::last_write_time(checkpoint_folder(info_.checkpoint_step), unknown);
  const std::chrono::duration<double> age = fs::file_time_type::clock::now() - written;
  return concat(text, ", and the newest is of step ", info_.checkpoint_step,
                unknown ? "" : concat(" and ", telemetry::format_duration(age.count()), " old"));
}

}  // namespace octet::train
