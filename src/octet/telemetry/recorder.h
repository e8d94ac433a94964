// Where a run's numbers go: the console, metrics.jsonl, fp8_health.jsonl and TensorBoard, behind one object.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "octet/telemetry/metrics.h"

namespace octet::telemetry {

// "step 120/1000  loss 4.812  grad 0.83  lr 2.9e-04  17,012 tok/s/gpu  875 TFLOPS  mfu 88.5%  61.2 GiB  eta 3m12s", then
// "  eval 4.701" and "  skipped 2" where there are any. What is unknown is left out.
struct ConsoleContext {
  std::int64_t total_steps = 0;
  double eta_s = kUnknown;
  std::string_view per = "gpu";  // what tok/s counts by: "gpu", on the CPU "process"
};
std::string console_line(const StepMetrics& metrics, const ConsoleContext& context);

class Recorder {
 public:
  struct Options {
    std::filesystem::path directory;          // metrics.jsonl, fp8_health.jsonl, run.json, tensorboard/
    std::int64_t rank = 0;                    // every other rank records nothing
    std::optional<std::int64_t> last_step{};  // resuming after this step: later records are forgotten; empty: a new run
    bool tensorboard = true;
    std::function<void(std::string_view line)> console{};  // empty: quiet
    std::int64_t total_steps = 0;
    std::string per = "gpu";                  // see ConsoleContext
  };
  // Makes `directory`. Failures throw Error{internal} "PATH: reason".
  explicit Recorder(const Options& options);
  ~Recorder();
  Recorder(Recorder&&) noexcept;
  Recorder& operator=(Recorder&&) noexcept;

  void write_run_info(const RunInfo& info);
  void write(const StepMetrics& metrics, double eta_s);
  void write(std::span<const HealthSample> samples);
  // Training went back to the checkpoint of `last_step`.
  void rewind(std::int64_t last_step);
  // To the disk itself: call before a checkpoint is declared complete.
  void sync();

 private:
  struct Sinks;
  std::unique_ptr<Sinks> sinks_;  // null on other ranks
};

}  // namespace octet::telemetry
