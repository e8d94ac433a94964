// Made-up runs for the tests of reports.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "octet/report/run.h"

namespace octet::report {

// The loss of step k is (2 + 3 / k) * factor. Every tenth step has an evaluation with 1.1 times that loss.
inline Run make_run(const std::string& name, const std::string& recipe, std::int64_t steps, double factor, double tokens_per_s) {
  Run run;
  run.info.name = name;
  run.info.recipe = recipe;
  run.info.device = "cuda";
  run.info.tokens_per_step = 1000;
  for (std::int64_t step = 1; step <= steps; ++step) {
    telemetry::StepMetrics m;
    m.step = step;
    m.loss = factor * (2 + 3 / static_cast<double>(step));
    m.grad_norm = 1;
    m.tokens_seen = 1000 * step;
    m.step_time_s = 0.5;
    m.tokens_per_s_per_gpu = tokens_per_s;
    m.memory_peak_gib = 1.5;
    if (step % 10 == 0) m.eval_loss = 1.1 * m.loss;
    run.metrics.push_back(m);
  }
  return run;
}

inline bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

inline void add_health(Run& run, std::int64_t layers, const std::vector<std::int64_t>& steps) {
  for (const std::int64_t step : steps) {
    for (std::int64_t layer = 0; layer < layers; ++layer) {
      for (const char* linear : {"self_attn.q_proj", "mlp.down_proj"}) {
        for (const char* operand : {"x", "w", "g"}) {
          run.health.push_back({.step = step,
                                .tensor = "model.layers." + std::to_string(layer) + "." + linear + "." + operand,
                                .amax = 1.0 + static_cast<double>(layer),
                                .scale = 448,
                                .saturated_pct = 0,
                                .flushed_pct = 0.5,
                                .sqnr_db = 31 - static_cast<double>(layer)});
        }
      }
    }
  }
}

}  // namespace octet::report
