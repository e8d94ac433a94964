#include "octet/telemetry/recorder.h"

#include <fmt/format.h>

#include <atomic>
#include <cmath>
#include <deque>
#include <limits>
#include <mutex>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

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
  if (!std::isnan(metrics.eta_s)) line += "  eta " + format_duration(metrics.eta_s);
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
  // A file of lines, and the records that could not yet be written to it.
  template <class Record>
  struct Lines {
    Lines(const std::filesystem::path& path, std::optional<std::int64_t> last_step) : file(path, last_step) {}
    JsonlWriter<Record> file;
    std::vector<Record> late;
  };
  explicit Sinks(const Options& from)
      : options(from),
        metrics(from.directory / "metrics.jsonl", from.last_step),
        health(from.directory / "fp8_health.jsonl", from.last_step),
        attention(from.directory / "attention_health.jsonl", from.last_step) {
    if (from.experts) experts.emplace(from.directory / "expert_loads.jsonl", from.last_step);
    if (from.tensorboard) tensorboard = std::make_unique<TensorBoardWriter>(from.directory / "tensorboard", from.last_step);
  }
  // Calls `act` and only warns if it fails: a run must not end because its records cannot be written.
  template <class Act>
  void attempt(Act&& act) {
    try {
      act();
    } catch (const Error& error) {
      const Clock::time_point now = Clock::now();
      if (warned && now - *warned < kBetweenWarnings) return;
      warned = now;
      log_warning(concat(error.what(), "; training goes on (records not written so far: ", lost.load(), ")"));
    }
  }
  // Writes the records that could not be written before, then `records`.
  template <class Record>
  void add(std::span<const Record> records, Lines<Record>& lines) {
    const std::lock_guard lock(mutex);
    add_locked(records, lines);
  }
  template <class Record>
  void add_locked(std::span<const Record> records, Lines<Record>& lines) {
    lines.late.insert(lines.late.end(), records.begin(), records.end());
    lost += static_cast<std::int64_t>(records.size());
    if (std::ssize(lines.late) > kMostLate) lines.late.erase(lines.late.begin(), lines.late.end() - kMostLate);
    attempt([&] { write_late(lines); });
  }
  template <class Record>
  void write_late(Lines<Record>& lines) {
    if (lines.late.empty()) return;
    lines.file.write(lines.late.data(), lines.late.size());
    lost -= static_cast<std::int64_t>(lines.late.size());
    lines.late.clear();
  }
  void write_late_events() {
    for (; !late_events.empty(); late_events.pop_front(), --lost) tensorboard->write(late_events.front());
  }
  // Calls act(lines) for every file with one line per step or sample.
  template <class Act>
  void each(Act&& act) {
    act(metrics);
    act(health);
    act(attention);
    if (experts) act(*experts);
  }

  static constexpr std::ptrdiff_t kMostLate = 100'000;  // most late records that are kept per file
  static constexpr std::chrono::minutes kBetweenWarnings{1};
  Options options;
  std::mutex mutex;  // guards the late records: the thread that writes checkpoints writes them, too
  Lines<StepMetrics> metrics;
  Lines<HealthSample> health;
  Lines<AttentionSample> attention;
  std::optional<Lines<ExpertSample>> experts;
  std::optional<Lines<StragglerRecord>> stragglers;  // opened when the first record comes
  std::unique_ptr<TensorBoardWriter> tensorboard;
  std::deque<StepMetrics> late_events;  // events that could not yet be written to `tensorboard`
  std::atomic<std::int64_t> lost = 0;   // records that are in no file, including the late ones
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

void Recorder::write(const StepMetrics& metrics) {
  if (!sinks_) return;
  sinks_->add(std::span(&metrics, 1), sinks_->metrics);
  if (sinks_->tensorboard) {
    const std::lock_guard lock(sinks_->mutex);
    std::deque<StepMetrics>& late = sinks_->late_events;
    late.push_back(metrics);
    ++sinks_->lost;
    if (std::ssize(late) > Sinks::kMostLate) late.pop_front();
    sinks_->attempt([&] { sinks_->write_late_events(); });
  }
  if (sinks_->options.console) {
    const ConsoleContext context{.total_steps = sinks_->options.total_steps, .worker = sinks_->options.worker};
    sinks_->options.console(console_line(metrics, context));
  }
}

void Recorder::write(std::span<const HealthSample> samples) {
  if (sinks_) sinks_->add(samples, sinks_->health);
}

void Recorder::write(std::span<const AttentionSample> samples) {
  if (sinks_) sinks_->add(samples, sinks_->attention);
}

void Recorder::write(std::span<const ExpertSample> samples) {
  if (sinks_) sinks_->add(samples, *sinks_->experts);
}

void Recorder::write(const StragglerRecord& record) {
  if (!sinks_) return;
  const std::lock_guard lock(sinks_->mutex);
  sinks_->attempt([&] {
    constexpr std::int64_t kAll = std::numeric_limits<std::int64_t>::max();
    if (!sinks_->stragglers) sinks_->stragglers.emplace(sinks_->options.directory / "stragglers.jsonl", kAll);
  });
  if (sinks_->stragglers) {
    sinks_->add_locked(std::span(&record, 1), *sinks_->stragglers);
  } else {
    ++sinks_->lost;
  }
}

void Recorder::rewind(std::int64_t last_step) {
  if (!sinks_) return;
  const std::lock_guard lock(sinks_->mutex);
  sinks_->each([&](auto& lines) {
    // sync() has written all records up to the checkpoint's step, so those that wait belong to later steps.
    sinks_->lost -= static_cast<std::int64_t>(lines.late.size());
    lines.late.clear();
    lines.file.rewind(last_step);
  });
  sinks_->lost -= std::ssize(sinks_->late_events);
  sinks_->late_events.clear();
  if (sinks_->tensorboard) sinks_->tensorboard->rewind(last_step);
}

void Recorder::sync() {
  if (!sinks_) return;
  const auto sync = [&](auto& lines) {
    {
      const std::lock_guard lock(sinks_->mutex);
      sinks_->write_late(lines);
    }
    lines.file.sync();
  };
  sinks_->each(sync);
  bool straggled = false;
  {
    const std::lock_guard lock(sinks_->mutex);
    straggled = sinks_->stragglers.has_value();
  }
  if (straggled) sync(*sinks_->stragglers);
  if (sinks_->tensorboard) {
    // The events are in metrics.jsonl, too, so their failure is no reason to fail a save.
    try {
      {
        const std::lock_guard lock(sinks_->mutex);
        sinks_->write_late_events();
      }
      sinks_->tensorboard->sync();
    } catch (const Error&) {
      const std::lock_guard lock(sinks_->mutex);
      sinks_->attempt([] { throw; });
    }
  }
  sync_directory(sinks_->options.directory);
}

std::int64_t Recorder::lost() const { return sinks_ ? sinks_->lost.load() : 0; }

}  // namespace octet::telemetry
