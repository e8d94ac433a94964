#include "octet/app/run_metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "octet/app/run_status.h"
#include "octet/base/start_thread.h"

namespace octet::app {
namespace {

using telemetry::RankPage;

constexpr const char* kOpenMetrics = "application/openmetrics-text; version=1.0.0; charset=utf-8";

double seconds_since_ns(std::int64_t ns) { return static_cast<double>(telemetry::monotonic_ns() - ns) * 1e-9; }

// Writes metric families.
class Exposition {
 public:
  void family(const char* name, const char* type, const char* help, const char* unit = nullptr) {
    text_ += fmt::format("# TYPE octet_{} {}\n", name, type);
    if (unit) text_ += fmt::format("# UNIT octet_{} {}\n", name, unit);
    text_ += fmt::format("# HELP octet_{} {}\n", name, help);
  }
  template <class Number>
  void sample(const char* name, Number value, const std::string& labels = "") {
    text_ += labels.empty() ? fmt::format("octet_{} {}\n", name, value) : fmt::format("octet_{}{{{}}} {}\n", name, labels, value);
  }
  std::string end() && { return std::move(text_) + "# EOF\n"; }

 private:
  std::string text_;
};

std::string rank_label(std::size_t rank) { return fmt::format("rank=\"{}\"", rank); }

// Adds a family with a sample for each GPU for which `value_of` returns a value. `type` is "gauge" or "counter".
template <class Value>
void add_gpu_family(Exposition& out, const std::vector<GpuReading>& gpus, const std::string& name, const std::string& type,
                    const char* help, const char* unit, Value&& value_of) {
  bool begun = false;
  for (std::size_t gpu = 0; gpu < gpus.size(); ++gpu) {
    const auto value = value_of(gpus[gpu]);
    if (!value) continue;
    if (!std::exchange(begun, true)) out.family(name.c_str(), type.c_str(), help, unit);
    out.sample((type == "gauge" ? name : name + "_total").c_str(), *value, fmt::format("gpu=\"{}\"", gpu));
  }
}

void add_gpus(Exposition& out, const std::vector<GpuReading>& gpus) {
  add_gpu_family(out, gpus, "gpu_clock_hertz", "gauge", "Clock of the multiprocessors.", "hertz", [](const GpuReading& gpu) {
    return gpu.clock_mhz ? std::optional(std::int64_t{*gpu.clock_mhz} * 1'000'000) : std::nullopt;
  });
  add_gpu_family(out, gpus, "gpu_power_watts", "gauge", "Power that the GPU draws.", "watts",
                 [](const GpuReading& gpu) { return gpu.power_w; });
  add_gpu_family(out, gpus, "gpu_energy_joules", "counter", "Energy that the GPU has taken since its driver was loaded.", "joules",
                 [](const GpuReading& gpu) { return gpu.energy_j; });
  add_gpu_family(out, gpus, "gpu_temperature_celsius", "gauge", "Temperature of the GPU.", "celsius",
                 [](const GpuReading& gpu) { return gpu.temperature_c; });
  add_gpu_family(out, gpus, "gpu_xid", "counter", "Errors that the driver has reported since these figures are served.", nullptr,
                 [](const GpuReading& gpu) { return gpu.xids; });
}

}  // namespace

std::string metrics_text(const Pages& pages, const std::vector<telemetry::Attempt>& attempts, const std::vector<GpuReading>& gpus,
                         HighestCounts& highest) {
  Exposition out;
  out.family("step", "gauge", "The last step that each rank has finished.");
  for (std::size_t rank = 0; rank < pages.size(); ++rank) {
    if (is_known(*pages[rank])) out.sample("step", pages[rank]->step.load(), rank_label(rank));
  }
  if (std::any_of(pages.begin(), pages.end(), [](const RankPage* page) { return page->own_s > 0; })) {
    out.family("rank_compute_seconds", "gauge", "Time of a step in which the rank did not wait for others.",
               "seconds");
    for (std::size_t rank = 0; rank < pages.size(); ++rank) {
      if (pages[rank]->own_s > 0) out.sample("rank_compute_seconds", pages[rank]->own_s.load(), rank_label(rank));
    }
  }
  const RankPage& first = *pages.front();
  if (first.step_s > 0) {
    out.family("loss", "gauge", "Mean loss of a token, of the last step that was logged.");
    out.sample("loss", first.loss.load());
    out.family("step_seconds", "gauge", "Time of a step, a mean since the last one that was logged.", "seconds");
    out.sample("step_seconds", first.step_s.load());
    out.family("tokens", "counter", "Tokens that the run has seen.");
    highest.tokens = std::max(highest.tokens, first.tokens.load());
    out.sample("tokens_total", highest.tokens);
  }
  if (first.saved_ns > 0) {
    out.family("checkpoint_step", "gauge", "The step of the newest checkpoint.");
    out.sample("checkpoint_step", first.saved_step.load());
  }
  const std::optional<NewestSnapshot> snapshot = newest_snapshot(pages);
  if (first.saved_ns > 0 || snapshot) {
    out.family("checkpoint_age_seconds", "gauge", "Time since the newest checkpoint or snapshot was complete.", "seconds");
    if (first.saved_ns > 0) out.sample("checkpoint_age_seconds", seconds_since_ns(first.saved_ns), "place=\"storage\"");
    if (snapshot) out.sample("checkpoint_age_seconds", snapshot->age_s, "place=\"memory\"");
  }
  std::map<int, int> restarts;
  for (const telemetry::Attempt& attempt : attempts) {
    if (attempt.next.starts_with("restarts")) ++restarts[attempt.code];
  }
  out.family("restarts", "counter", "Starts of all ranks after an attempt that ended with this exit code.");
  for (const auto& [code, count] : restarts) out.sample("restarts_total", count, fmt::format("code=\"{}\"", code));
  const telemetry::TimeOfAttempts time = telemetry::time_of(attempts);
  highest.between_s = std::max(highest.between_s, time.between);
  out.family("lost_seconds", "counter", "Time of ended attempts that brought no step that the run still has.", "seconds");
  for (const auto& [part, seconds] : {std::pair("again", time.again),
                                      {"unnoticed", time.unnoticed},
                                      {"start", time.start},
                                      {"stop", time.stop},
                                      {"between", highest.between_s}})
    out.sample("lost_seconds_total", seconds, fmt::format("part=\"{}\"", part));
  add_gpus(out, gpus);
  return std::move(out).end();
}

RunMetrics::RunMetrics(const std::string& address, int port, double stall_s, Pages pages)
    : pages_(std::move(pages)),
      stall_s_(stall_s),
      movement_(stall_s),
      ranks_(pages_),
      server_({.address = address, .port = port, .hint = "set metrics.port and metrics.address"},
              [this](std::string_view path) { return at(path); }),
      thread_(start_thread("the server of metrics", [this] {
        sensors_.emplace().listen();
        server_.run(wakeup_.fd(), [] { return true; });
      })) {}

RunMetrics::~RunMetrics() {
  wakeup_.poke();
  thread_.join();
}

void RunMetrics::set_ended(std::vector<telemetry::Attempt> ended) {
  const std::lock_guard lock(mutex_);
  ended_ = std::move(ended);
}

void RunMetrics::begin(Pages ranks) {
  const std::lock_guard lock(mutex_);
  movement_ = Movement(stall_s_);
  ranks_ = std::move(ranks);
}

void RunMetrics::end() {
  const std::lock_guard lock(mutex_);
  ranks_.reset();
}

void RunMetrics::begin_run() {
  const std::lock_guard lock(mutex_);
  highest_ = {};
}

std::shared_ptr<const HttpContent> RunMetrics::at(std::string_view path) {
  const auto text = [](std::string body, int status = 200) {
    return std::make_shared<const HttpContent>(
        HttpContent{.type = "text/plain; charset=utf-8", .body = std::move(body), .etag = {}, .status = status});
  };
  if (path == "/metrics") {
    const std::vector<GpuReading> gpus = sensors_->read();
    const std::lock_guard lock(mutex_);
    return std::make_shared<const HttpContent>(HttpContent{kOpenMetrics, metrics_text(pages_, ended_, gpus, highest_), {}});
  }
  if (path != "/healthz") return nullptr;
  const std::lock_guard lock(mutex_);
  if (!ranks_) return text("no rank runs\n", 503);
  if (ranks_->empty()) return text("spare\n");
  const std::optional<double> stalled_s = movement_.stalled_s(*ranks_, Clock::now());
  if (stalled_s) return text(fmt::format("no rank has moved for {:.3g} s\n", *stalled_s), 503);
  const RankPage& first = *ranks_->front();
  return text(fmt::format("{} after step {}\n", telemetry::name_of(first.phase), first.step.load()));
}

std::unique_ptr<RunMetrics> own_metrics(const train::Config& config) {
  if (config.metrics.port == 0 || !telemetry::own_attempt().job.empty()) return nullptr;
  return std::make_unique<RunMetrics>(config.metrics.address, static_cast<int>(config.metrics.port), config.comm.stall_s,
                                      Pages{&telemetry::own_page()});
}

}  // namespace octet::app
