#include "octet/telemetry/recorder.h"

#include <fmt/format.h>

#include <atomic>
#include <cmath>
#include <optional>
#include <system_error>
#include <utility>

#include "octet/base/clock.h"
#include "octet/base/directory.h"
#include "octet/base/file.h"
#include "octet/base/log.h"
#include "octet/base/require.h"
#include "octet/telemetry/jsonl.h"
#include "octet/telemetry/tensorboard.h"

namespace octet::telemetry {

std::string console_line(const StepMetrics& metrics, const ConsoleContext& context) {
  std::string line = fmt::format("step {}/{}  loss {:.3f}", metrics.step, context.total_steps, metrics.loss);
  if (!std::isnan(metrics.grad_norm)) {
    line += "  grad " + (std::abs(metrics.grad_norm) >= 0.1 ? fmt::format("{:.2f}", metrics.grad_norm)
                                                             : format_significant(metrics.grad_norm, 2));
  }
  if (!std::isnan(metrics.lr)) line += fmt::format("  lr {:.1e}", metrics.lr);
  if (!std::isnan(metrics.tokens_per_s_per_gpu)) {
    line += "  " + format_rate(metrics.tokens_per_s_per_gpu, context.worker);
  }
  if (!std::isnan(metrics.tflops_per_gpu)) line += fmt::format("  {} TFLOPS", format_significant(metrics.tflops_per_gpu, 3));
  if (metrics.mfu) line += "  mfu " + format_share(*metrics.mfu);
  if (metrics.pipeline_bubble_s) line += "  bubble " + format_share(*metrics.pipeline_bubble_s / metrics.step_time_s);
  if (!std::isnan(metrics.memory_peak_gib)) line += "  " + format_gib(metrics.memory_peak_gib);
  if (!std::isnan(context.eta_s)) line += "  eta " + format_duration(context.eta_s);
  if (!metrics.eval_losses.empty()) {
    line += "  eval";
    for (const auto& [name, loss] : metrics.eval_losses) {
      line += fmt::format("{} {} {:.3f}", &name == &metrics.eval_losses.front().first ? "" : ",", name, loss);
    }
  } else if (metrics.eval_loss) {
    line += fmt::format("  eval {:.3f}", *metrics.eval_loss);
  }
  if (metrics.skipped_steps > 0) line += fmt::format("  skipped {}", format_count(metrics.skipped_steps));
  return line;
}

struct Recorder::Sinks {
  explicit Sinks(const Options& from)
      : options(from),
        metrics(from.directory / "metrics.jsonl", from.last_step),
        health(from.directory / "fp8_health.jsonl", from.last_step),
        attention(from.directory / "attention_health.jsonl", from.last_step) {
    if (from.experts) experts.emplace(from.directory / "expert_loads.jsonl", from.last_step);
    if (from.tensorboard) tensorboard = std::make_unique<TensorBoardWriter>(from.directory / "tensorboard", from.last_step);
  }
  // Calls `act`, which writes `records` records. A failure must not cost the run that it is about.
  template <class Act>
  void attempt(std::size_t records, Act&& act) {
    try {
      act();
    } catch (const Error& error) {
      lost += static_cast<std::int64_t>(records);
      const Clock::time_point now = Clock::now();
      if (warned && now - *warned < kBetweenWarnings) return;
      warned = now;
      log_warning(concat(error.what(), "; training goes on (records lost so far: ", lost.load(), ")"));
    }
  }

  static constexpr std::chrono::minutes kBetweenWarnings{1};
  Options options;
  JsonlWriter<StepMetrics> metrics;
  JsonlWriter<HealthSample> health;
  JsonlWriter<AttentionSample> attention;
  std::optional<JsonlWriter<ExpertSample>> experts;
  std::unique_ptr<TensorBoardWriter> tensorboard;
  std::atomic<std::int64_t> lost = 0;  // the thread that writes checkpoints reads it
  std::optional<Clock::time_point> warned;
};

Recorder::Recorder(const Options& options) {
  if (options.rank != 0) return;
  make_folders(options.directory);
  sinks_ = std::make_unique<Sinks>(options);
}
Recorder::~Recorder() = default;
Recorder::Recorder(Recorder&&) noexcept = default;
Recorder& Recorder::operator=(Recorder&&) noexcept = default;

void Recorder::write_run_info(const RunInfo& info) {
  if (sinks_) telemetry::write_run_info(sinks_->options.directory / "run.json", info);
}

void Recorder::write(const StepMetrics& metrics, double eta_s) {
  if (!sinks_) return;
  sinks_->attempt(1, [&] { sinks_->metrics.write(metrics); });
  if (sinks_->tensorboard) sinks_->attempt(1, [&] { sinks_->tensorboard->write(metrics); });
  if (sinks_->options.console) {
    const ConsoleContext context{.total_steps = sinks_->options.total_steps, .eta_s = eta_s, .worker = sinks_->options.worker};
    sinks_->options.console(console_line(metrics, context));
  }
}

void Recorder::write(std::span<const HealthSample> samples) {
  if (sinks_) sinks_->attempt(samples.size(), [&] { sinks_->health.write(samples.data(), samples.size()); });
}

void Recorder::write(std::span<const AttentionSample> samples) {
  if (sinks_) sinks_->attempt(samples.size(), [&] { sinks_->attention.write(samples.data(), samples.size()); });
}

void Recorder::write(std::span<const ExpertSample> samples) {
  if (sinks_) sinks_->attempt(samples.size(), [&] { sinks_->experts->write(samples.data(), samples.size()); });
}

void Recorder::rewind(std::int64_t last_step) {
  if (!sinks_) return;
  sinks_->metrics.rewind(last_step);
  sinks_->health.rewind(last_step);
  sinks_->attention.rewind(last_step);
  if (sinks_->experts) sinks_->experts->rewind(last_step);
  if (sinks_->tensorboard) sinks_->tensorboard->rewind(last_step);
}

void Recorder::sync() {
  if (!sinks_) return;
  sinks_->metrics.sync();
  sinks_->health.sync();
  sinks_->attention.sync();
  if (sinks_->experts) sinks_->experts->sync();
  sync_directory(sinks_->options.directory);
}

std::int64_t Recorder::lost() const { return sinks_ ? sinks_->lost.load() : 0; }

}  // namespace octet::telemetry
