// Layers that FP8 represents badly, by the samples of fp8_health.jsonl.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "octet/telemetry/metrics.h"

namespace octet::plan {

// A tensor is judged by the medians of its samples, so that the first steps, in which delayed scales have no history, do not
// count.
//
// Per-tensor recipes clip at most 0.006 % of any tensor of a healthy run (quickstart), and what is clipped is the largest, which
// carries most: a share 15 times as large means that the scale does not follow its tensor.
inline constexpr double kMaxSaturatedPct = 0.1;
// Healthy tensors lose up to 6 % of their non-zero elements, the smallest, in the first steps and 0.5 % later. Beyond 10 % a
// tenth of a tensor never reaches the products.
inline constexpr double kMaxFlushedPct = 10;
// The format fixes the signal-to-noise ratio of a well scaled tensor to within 1 dB (31.5 dB in E4M3, 25.5 dB in E5M2), so the
// others with the same letter are the measure. 6 dB below their median is twice the noise.
inline constexpr double kMaxDbBelowPeers = 6;

struct HealthFinding {
  std::string layer;   // "model.layers.3.mlp.down_proj"
  char operand = 'x';  // x, w or g
  std::string figure;  // "flushed to zero", "saturated", "signal to noise"
  std::string unit;    // "%" or "dB"
  double value = 0;    // the median
  double limit = 0;    // that it is beyond
};

// Of tensors "LAYER.x", "LAYER.w" and "LAYER.g", in the order in which they first occur.
std::vector<HealthFinding> find_unhealthy(std::span<const telemetry::HealthSample> samples);

// Each layer once.
std::vector<std::string> layers_of(const std::vector<HealthFinding>& findings);

}  // namespace octet::plan
