// Finds layers that FP8 represents badly, from the samples in fp8_health.jsonl.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "octet/telemetry/metrics.h"

namespace octet::plan {

// Each limit is compared with the median of a tensor's samples, so that the first steps, in which delayed scales have no history, do not
// decide.
//
// The largest healthy percentage of saturated elements. In a healthy run (quickstart), recipes with one scale for each tensor saturate at
// most 0.006% of a tensor. Saturated elements are the largest and matter most; above this limit the scale does not follow its tensor.
inline constexpr double kMaxSaturatedPct = 0.1;
// The largest healthy percentage of non-zero elements that are flushed to zero. Healthy tensors lose up to 6% in the first steps and
// 0.5% later, always the smallest elements. Above this limit, a tenth of a tensor never reaches the products.
inline constexpr double kMaxFlushedPct = 10;
// How far a tensor's signal-to-noise ratio may be below the median of the tensors with the same role. The format fixes the ratio of a
// well-scaled tensor to within 1 dB (31.5 dB in E4M3, 25.5 dB in E5M2). A ratio 6 dB lower means twice the noise amplitude.
inline constexpr double kMaxDbBelowPeers = 6;

struct HealthFinding {
  std::string layer;   // "model.layers.3.mlp.down_proj"
  char operand = 'x';  // x, w or g
  std::string figure;  // "flushed to zero", "saturated", "signal to noise"
  std::string unit;    // "%" or "dB"
  double value = 0;    // median of the samples
  double limit = 0;    // the limit that `value` exceeds, or falls below (signal to noise)
};

// Returns the findings for tensors named "LAYER.x", "LAYER.w" and "LAYER.g", in the order in which they first occur.
std::vector<HealthFinding> find_unhealthy(std::span<const telemetry::HealthSample> samples);

// Returns the layers of the findings, each once.
std::vector<std::string> layers_of(const std::vector<HealthFinding>& findings);

}  // namespace octet::plan
