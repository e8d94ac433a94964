// The figures of a run for Prometheus and alike, and whether it moves: served by rank 0, by the process that compares recipes, or by the
// supervisor of each host.
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

// In the OpenMetrics text format, version 1.0.0. docs/guides/keep-running.md lists the figures; those that nobody knows yet are
// left out. `attempts` are those that have ended, `gpus` those of this host.
std::string metrics_text(const Pages& pages, const std::vector<telemetry::Attempt>& attempts,
                         const std::vector<GpuReading>& gpus);

// Serves /metrics and /healthz. The latter answers 503 while no rank runs, and while none has moved for longer than Movement
// allows.
class RunMetrics {
 public:
  // `pages` are those of all ranks; rank 0's is the first. They outlive the object. Throws Error{config} if it cannot listen.
  RunMetrics(const std::string& address, int port, double stall_s, Pages pages);
  ~RunMetrics();

  int port() const { return server_.port(); }
  // An attempt begins, or has ended.
  void begin();
  void end(const telemetry::Attempt& attempt);

 private:
  std::shared_ptr<const HttpContent> at(std::string_view path);

  Pages pages_;
  // The two members below belong to the thread that serves. NVML may wait long, and so holds up nobody else.
  Movement movement_;
  std::optional<GpuSensors> sensors_;
  std::mutex mutex_;  // guards the two members below
  std::vector<telemetry::Attempt> attempts_;
  bool runs_ = true;
  HttpServer server_;
  comm::Wakeup wakeup_;
  std::thread thread_;
};

// Serves the figures of this process at metrics.port. Null if that is 0, or if a supervisor serves them.
std::unique_ptr<RunMetrics> own_metrics(const train::Config& config);

}  // namespace octet::app
