#include "octet/telemetry/health_verdict.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <string_view>

#include "octet/base/median.h"
#include "octet/base/require.h"
#include "octet/telemetry/format.h"

namespace octet::telemetry {
namespace {

// Collects finite values. Values that are not finite carry no information: an infinite ratio means that the tensor lost nothing.
class Values {
 public:
  // `latest`: the value belongs to the last step that the run has sampled.
  void add(double value, bool latest = false) {
    if (!std::isfinite(value)) return;
    values_.push_back(value);
    if (latest) latest_ = value;
  }
  std::size_t count() const { return values_.size(); }
  // The median of all values, or of the first or last n. If their number is even, this is the lower middle value. NaN if there
  // are none.
  double median() const { return lower_median(values_); }
  // The value that is beyond a limit, and that limit. It is the median, or else the latest value. The limit of the latest value
  // is wider, because healthy runs have single samples beyond the limit of the median.
  struct Beyond {
    double value, limit;
    bool only_latest;
  };
  std::optional<Beyond> above(double limit) const {
    if (median() > limit) return Beyond{median(), limit, false};
    const double alone = 5 * limit;
    return latest_ > alone ? std::optional(Beyond{latest_, alone, true}) : std::nullopt;
  }
  // The same for values that should not be below a limit in decibels.
  std::optional<Beyond> below(double limit) const {
    if (median() < limit) return Beyond{median(), limit, false};
    const double alone = limit - kMaxDbBelowPeers;
    return latest_ < alone ? std::optional(Beyond{latest_, alone, true}) : std::nullopt;
  }
  double median_of_first(std::size_t n) const {
    return lower_median({values_.begin(), values_.begin() + static_cast<std::ptrdiff_t>(n)});
  }
  double median_of_last(std::size_t n) const {
    return lower_median({values_.end() - static_cast<std::ptrdiff_t>(n), values_.end()});
  }

 private:
  std::vector<double> values_;  // in the order of the samples
  double latest_ = kUnknown;
};

struct TensorHealth {
  std::string layer;
  char operand;
  Values saturated, flushed, sqnr, kurtosis, amax_to_rms, alignment, top_channel, edge;
};

void add_attention(std::span<const AttentionSample> samples, std::vector<HealthFinding>& findings) {
  std::vector<std::string> layers;
  std::map<std::string, Values> largest;
  const std::int64_t last = samples.empty() ? 0 : samples.back().step;
  for (const AttentionSample& sample : samples) {
    if (!largest.contains(sample.layer)) layers.push_back(sample.layer);
    largest[sample.layer].add(sample.lse_max, sample.step == last);
  }
  for (const std::string& layer : layers) {
    const auto logit_above = largest[layer].above(kDivergingLogit);
    const bool diverging = logit_above.has_value();
    const auto logit = diverging ? logit_above : largest[layer].above(kLargeLogit);
    if (!logit) continue;
    findings.push_back({.layer = layer,
                        .operand = 'a',
                        .figure = "largest log-sum-exp",
                        .unit = "",
                        .value = logit->value,
                        .limit = logit->limit,
                        .step = logit->only_latest ? last : 0,
                        .concern = diverging ? Concern::danger : Concern::watch,
                        .source = diverging ? "Wortsman et al., 2023" : "Dehghani et al., 2023"});
  }
}

}  // namespace

std::string sentence_of(const HealthFinding& f) {
  const std::string_view operand = f.operand == 'x'   ? "input"
                                   : f.operand == 'w' ? "weight"
                                   : f.operand == 'g' ? "gradient"
                                   : f.operand == 'n' ? "weights of the norm"
                                                      : "logits";
  const bool spaced = f.unit == "dB";
  const auto value = [&](double x) { return concat(format_significant(x, 3), spaced ? " " : "", f.unit); };
  return concat(operand, ", ", f.figure, f.step > 0 ? concat(" in step ", format_count(f.step)) : "", ": ", value(f.value),
                ", the limit is ", fmt::format("{:g}", f.limit), spaced ? " " : "", f.unit,
                *f.source ? concat(" (", f.source, ")") : "");
}

std::vector<HealthFinding> find_unhealthy(std::span<const HealthSample> samples, std::span<const AttentionSample> attention) {
  std::vector<TensorHealth> tensors;
  std::map<std::string, std::size_t> places;
  const std::int64_t last = samples.empty() ? 0 : samples.back().step;
  for (const HealthSample& sample : samples) {
    const std::string& name = sample.tensor;
    if (name.size() < 3 || name[name.size() - 2] != '.') continue;  // in a file that another program wrote
    const auto [place, is_new] = places.emplace(name, tensors.size());
    if (is_new) {
      tensors.push_back({.layer = name.substr(0, name.size() - 2),
                         .operand = name.back(),
                         .saturated = {},
                         .flushed = {},
                         .sqnr = {},
                         .kurtosis = {},
                         .amax_to_rms = {},
                         .alignment = {},
                         .top_channel = {},
                         .edge = {}});
    }
    TensorHealth& tensor = tensors[place->second];
    const bool latest = sample.step == last;
    tensor.saturated.add(sample.saturated_pct, latest);
    tensor.flushed.add(sample.flushed_pct, latest);
    tensor.sqnr.add(sample.sqnr_db, latest);
    tensor.kurtosis.add(sample.kurtosis);
    tensor.amax_to_rms.add(sample.amax_to_rms, latest);
    if (sample.alignment) tensor.alignment.add(*sample.alignment, latest);
    if (sample.top_channel_pct) tensor.top_channel.add(*sample.top_channel_pct, latest);
    if (sample.edge_pct) tensor.edge.add(*sample.edge_pct, latest);
  }
  std::map<char, Values> peers;
  for (const TensorHealth& tensor : tensors) peers[tensor.operand].add(tensor.sqnr.median());

  std::vector<HealthFinding> findings;
  for (TensorHealth& tensor : tensors) {
    const auto add = [&](Concern concern, const char* figure, const char* unit, const std::optional<Values::Beyond>& beyond,
                         const char* source) {
      if (!beyond) return;
      findings.push_back({.layer = tensor.layer,
                          .operand = tensor.operand,
                          .figure = figure,
                          .unit = unit,
                          .value = beyond->value,
                          .limit = beyond->limit,
                          .step = beyond->only_latest ? last : 0,
                          .concern = concern,
                          .source = source});
    };
    const auto danger = [&](const char* figure, const char* unit, const std::optional<Values::Beyond>& beyond) {
      add(Concern::danger, figure, unit, beyond, "");
    };
    const auto watch = [&](const char* figure, const char* unit, const Values& values, double limit, const char* source) {
      add(Concern::watch, figure, unit, values.above(limit), source);
    };
    const double least_db = peers[tensor.operand].median() - kMaxDbBelowPeers;
    danger("saturated", "%", tensor.saturated.above(kMaxSaturatedPct));
    danger("flushed to zero", "%", tensor.flushed.above(kMaxFlushedPct));
    danger("signal to noise", "dB", tensor.sqnr.below(least_db));
    watch("cosine of a channel's gate and up rows", "", tensor.alignment, kAligned, "Fishman et al., 2024");
    watch("share of the top channel in all channels' largest elements", "%", tensor.top_channel, kMaxTopChannelPct,
          "Fishman et al., 2024");
    watch("at the edge of their binade", "%", tensor.edge, kMaxEdgePct, "Su et al., 2025");
    if (tensor.operand != 'x') continue;
    watch("largest against root mean square", "×", tensor.amax_to_rms, kMassive, "Sun et al., 2024");
    const std::size_t quarter = tensor.kurtosis.count() / 4;
    if (tensor.kurtosis.count() < kFewestForGrowth) continue;
    const double first = tensor.kurtosis.median_of_first(quarter), last_quarter = tensor.kurtosis.median_of_last(quarter);
    Values growth;
    growth.add(last_quarter / std::max(first, 3.0));
    watch("growth of its kurtosis", "×", growth, kKurtosisGrowth, "Hernández-Cano et al., 2025");
  }
  add_attention(attention, findings);
  return findings;
}

bool is_of_attention(std::string_view layer) {
  for (const char* name : {".q", ".k", ".v", ".s", ".o"}) {
    if (layer.ends_with(name)) return true;
  }
  return false;
}

std::vector<std::string> layers_of(const std::vector<HealthFinding>& findings) {
  std::vector<std::string> layers;
  for (const HealthFinding& finding : findings) {
    if (finding.concern != Concern::danger || finding.operand == 'a' || is_of_attention(finding.layer)) continue;
    if (std::find(layers.begin(), layers.end(), finding.layer) == layers.end()) layers.push_back(finding.layer);
  }
  return layers;
}

}  // namespace octet::telemetry
