// The figures of a run for Prometheus and similar programs, and whether it makes progress. Rank 0, the process that compares
// recipes, or the supervisor of each host serves them.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "octet/app/http_server.h"
#include "octet/app/stall.h"
#include "octet/device/cuda/gpu_sensors.h"
#include "octet/telemetry/attempts.h"
#include "octet/telemetry/rank_page.h"
#include "octet/train/config.h"

namespace octet::app {

// The highest values so far of counters that may go back when a run restarts. Prometheus would take a lower value for a restart
// from 0.
struct HighestCounts {
  std::int64_t tokens = 0;
  double between_s = 0;
};

// Returns the figures in the OpenMetrics text format, version 1.0.0. docs/guides/keep-running.md lists them; unknown figures
// are left out. `attempts` are those that have ended, `gpus` those of this host.
std::string metrics_text(const Pages& pages, const std::vector<telemetry::Attempt>& attempts, const std::vector<GpuReading>& gpus,
                         HighestCounts& highest);

// Serves /metrics and /healthz. The latter answers 503 between two attempts, and while no rank has moved for longer than
// Movement allows.
class RunMetrics {
 public:
  // `pages` are the pages of all ranks, rank 0's first. They must outlive the object. Starts as begin(pages) does. Throws
  // Error{config} if it cannot listen.
  RunMetrics(const std::string& address, int port, double stall_s, Pages pages);
  ~RunMetrics();

  int port() const { return server_.port(); }
  // The attempts of this run that have ended. Later calls may only add some.
  void set_ended(std::vector<telemetry::Attempt> ended);
  // Call it when an attempt begins. /healthz judges `ranks`, the pages of the ranks that this process knows. If there are none,
  // this host is a spare.
  void begin(Pages ranks);
  // Call it when no rank runs any more.
  void end();
  // Call it when another run begins, whose counters begin at 0.
  void begin_run();

 private:
  std::shared_ptr<const HttpContent> at(std::string_view path);

  const Pages pages_;
  const double stall_s_;
  std::optional<GpuSensors> sensors_;  // of the thread that serves: NVML may wait long, and holds up nobody else
  std::mutex mutex_;                   // guards the members below
  Movement movement_;
  HighestCounts highest_;
  std::vector<telemetry::Attempt> ended_;
  std::optional<Pages> ranks_;  // /healthz judges these; nothing if no rank runs
  HttpServer server_;
  comm::Wakeup wakeup_;
  std::thread thread_;
};

// Serves the figures of this process at metrics.port. Returns null if the port is 0, or if a supervisor serves them.
std::unique_ptr<RunMetrics> own_metrics(const train::Config& config);

}  // namespace octet::app
