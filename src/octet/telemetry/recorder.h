// Writes a run's metrics to all their destinations: the console, JSON files and TensorBoard.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "octet/telemetry/format.h"
#include "octet/telemetry/metrics.h"
#include "octet/telemetry/stragglers.h"

namespace octet::telemetry {

// Formats "step 120/1000  loss 4.812  grad 0.83  lr 2.9e-04  17,012 tok/s/gpu  875 TFLOPS  mfu 88.5%  61.2 GiB  eta 3m12s",
// followed by "  eval 4.701", or "  eval chat 4.701, code 3.210", and "  skipped 2" if there are such values. Unknown values are
// omitted.
struct ConsoleContext {
  std::int64_t total_steps = 0;
  Worker worker = Worker::gpu;  // the process that rates are stated for
};
std::string console_line(const StepMetrics& metrics, const ConsoleContext& context);

class Recorder {
 public:
  struct Options {
    std::filesystem::path directory;          // receives run.json, the .jsonl files and tensorboard/
    std::int64_t rank = 0;                    // only rank 0 records anything
    std::optional<std::int64_t> last_step{};  // resume after this step and drop later records; empty for a new run
    bool tensorboard = true;
    bool experts = false;                     // the model has mixtures, so there is an expert_loads.jsonl
    std::function<void(std::string_view line)> console{};  // receives each line; empty for no console output
    std::int64_t total_steps = 0;
    Worker worker = Worker::gpu;  // see ConsoleContext
  };
  // Creates `directory`. Failures throw Error{internal} "PATH: reason". Later, write() does not throw: lines and TensorBoard
  // events that it cannot write wait in memory and are written before the next ones. A warning is printed at most once a minute.
  explicit Recorder(const Options& options);
  ~Recorder();
  Recorder(Recorder&&) noexcept;
  Recorder& operator=(Recorder&&) noexcept;

  void write_run_info(const RunInfo& info);
  void write(const StepMetrics& metrics);
  void write(std::span<const HealthSample> samples);
  void write(std::span<const AttentionSample> samples);
  void write(std::span<const ExpertSample> samples);
  // Creates stragglers.jsonl with the first record. Records are never removed from it, because they describe machines.
  void write(const StragglerRecord& record);
  // Drops the records after `last_step`. Called when training goes back to the checkpoint of that step.
  void rewind(std::int64_t last_step);
  // Writes the waiting records, and calls fsync on the files and their folders. Call it before a checkpoint is declared
  // complete. Throws Error{internal}. A failure of TensorBoard's events causes only a warning, because metrics.jsonl has the
  // same values.
  void sync();
  // Returns how many records have not been written to one or more destinations, including those that wait.
  std::int64_t lost() const;

 private:
  struct Sinks;
  std::unique_ptr<Sinks> sinks_;  // null on ranks other than 0
};

}  // namespace octet::telemetry
