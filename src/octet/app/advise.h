// The facts on which `octet advise` bases its advice.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "octet/plan/advice.h"
#include "octet/telemetry/health_verdict.h"

namespace octet::app {

struct AdvisedRecipe {
  std::string name;
  std::string refusal;                                // why this model or configuration cannot run it; then nothing else is known
  std::vector<plan::LinearTime> predicted, measured;  // of each kind of linear; `measured` is empty without a GPU
  std::vector<std::int64_t> fp8_layers, healthy_layers;  // of each kind, see plan::Candidate
  std::size_t memory_bytes = 0;

  // Uses the measured times if there are any.
  plan::Candidate candidate() const {
    return {name, measured.empty() ? predicted : measured, fp8_layers, healthy_layers, memory_bytes};
  }
};

struct Advice {
  std::string run;
  std::string gpu;                   // the GPU that measured; "" if none did
  std::size_t gpu_memory_bytes = 0;  // of that GPU, or of an H200
  std::string head;                  // precision.head
  plan::LinearSetting setting;
  std::vector<plan::LinearKind> kinds;
  std::vector<AdvisedRecipe> recipes;  // bf16 first
  std::vector<telemetry::HealthFinding> findings;
  std::optional<std::string> health;  // the file that was read
  plan::Recommendation recommendation;
};

// Times a linear on the GPU of `stream`, with the fastest algorithms for its products. `ops` is the work that the meta device
// counted.
plan::LinearTime measure_linear(Stream& stream, const plan::LinearKind& kind, const Recipe& recipe,
                                const plan::LinearSetting& setting, const plan::LinearOps& ops);

std::string advice_text(const Advice& advice);
std::string advice_json(const Advice& advice);

}  // namespace octet::app
