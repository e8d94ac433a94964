// Judges the health samples of a run: which tensors FP8 represents badly, and which known signs of divergence there are.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "octet/telemetry/metrics.h"

namespace octet::telemetry {

// Each limit is compared with the median of a tensor's samples, so that the first steps, in which delayed scales have no
// history, do not decide. The run's latest sample is also compared, so that a median of healthy samples does not hide a run
// that has just gone wrong. The limits for it are wider, five times as large or 6 dB farther below, because single samples of
// healthy runs exceed the limits of the median.
//
// The largest healthy percentage of saturated elements. In a healthy run (quickstart), recipes with one scale for each tensor
// saturate at most 0.006% of a tensor. Saturated elements are the largest and matter most; above this limit the scale does not
// follow its tensor.
inline constexpr double kMaxSaturatedPct = 0.1;
// The largest healthy percentage of non-zero elements that are flushed to zero. Healthy tensors lose up to 6% in the first steps
// and 0.5% later, always the smallest elements. Above this limit, a tenth of a tensor never reaches the products.
inline constexpr double kMaxFlushedPct = 10;
// How far a tensor's signal-to-noise ratio may be below the median of the tensors with the same role. The format fixes the ratio
// of a well-scaled tensor to within 1 dB (31.5 dB in E4M3, 25.5 dB in E5M2). A ratio 6 dB lower means twice the noise amplitude.
inline constexpr double kMaxDbBelowPeers = 6;
// The limit for an input's largest element, relative to its root mean square. Sun et al. (Massive Activations in Large Language
// Models, 2024) call an activation massive if it is at least a thousand times the typical magnitude.
inline constexpr double kMassive = 1000;
// An input's kurtosis that keeps growing comes before a divergence (Hernández-Cano et al., Towards Fully FP8 GEMM LLM Training at
// Scale, 2025). It has grown if the median of the last quarter of the samples is this multiple of that of the first quarter, and
// of a normal distribution's 3. With fewer samples than kFewestForGrowth nothing is said.
inline constexpr double kKurtosisGrowth = 10;
inline constexpr std::size_t kFewestForGrowth = 8;
// In a gated layer, a channel whose gate and up projection have weights in the same direction squares its input, and its
// activations grow until FP8 cannot follow (Fishman et al., Scaling FP8 Training to Trillion-Token LLMs, 2024). Rows that are
// trained apart are nearly orthogonal.
inline constexpr double kAligned = 0.9;
// The output of such a channel can be far larger than that of all others, and then sets the scale of the whole tensor (same
// paper). Limits the percentage of the sum of all channels' amaxes that the top channel holds.
// With one scale for the tensor, the other channels of a large layer then begin to fall below E4M3's normal numbers. In healthy
// runs the top one of 64 channels held about 12% at most, and of 512 about 1%.
inline constexpr double kMaxTopChannelPct = 25;
// The largest logit of attention, by its log-sum-exp. Training diverged where it passed about 10,000 (Wortsman et al.,
// Small-scale proxies for large-scale Transformer training instabilities, 2023); growth is visible long before (Dehghani et al.,
// Scaling Vision Transformers to 22 Billion Parameters, 2023).
inline constexpr double kLargeLogit = 1000, kDivergingLogit = 10'000;

// The limit for the percentage of a norm's weights that lie at the edge of their binade. Weights of a norm resemble each other.
// If those of a block lie just below a power of two, the MX specification's scale clamps all of them to one code, and gradients
// are biased (Su et al., Characterization and Mitigation of Training Instabilities in Microscaling Formats, 2025). Of normally
// distributed weights with a standard deviation of a tenth of their mean, at most 24% lie there in a large norm; of more widely
// spread weights, about 1%.
inline constexpr double kMaxEdgePct = 30;

enum class Concern : std::uint8_t {
  watch,   // often seen before trouble
  danger,  // FP8 represents this tensor too badly, or other runs diverged in this state
};

struct HealthFinding {
  std::string layer;   // "model.layers.3.mlp.down_proj"
  char operand = 'x';  // x, w or g; a: attention; n: a norm, which `layer` names
  std::string figure;  // "flushed to zero", "saturated", "signal to noise", "largest against root mean square", ...
  std::string unit;    // "%", "dB", "×" or ""
  double value = 0;    // median of the samples, or of the latest sample if `step` is set
  double limit = 0;    // the limit that `value` exceeds, or falls below (signal to noise)
  std::int64_t step = 0;  // of the latest sample, if that one alone is beyond the limit and the median is not
  Concern concern = Concern::danger;
  const char* source = "";  // the paper that the limit comes from; "": see above
};
// "input, flushed to zero: 12.0%, the limit is 10%", or "input, flushed to zero in step 40: ...". The layer is not included.
std::string sentence_of(const HealthFinding& finding);

// Returns the findings for tensors named "LAYER.x", "LAYER.w", "LAYER.g" and "NORM.n", in the order in which they first occur,
// then those for attention.
std::vector<HealthFinding> find_unhealthy(std::span<const HealthSample> samples, std::span<const AttentionSample> attention = {});

// Whether this is the name of Q, K, V, O or the scores of attention in FP8 (nn/attention_fp8.cpp), which are not linears.
bool is_of_attention(std::string_view layer);

// Returns the linears of the dangerous findings, each once.
std::vector<std::string> layers_of(const std::vector<HealthFinding>& findings);

}  // namespace octet::telemetry
