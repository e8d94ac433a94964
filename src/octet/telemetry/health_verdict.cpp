#include "octet/telemetry/health_verdict.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string_view>

#include "octet/base/median.h"
#include "octet/base/require.h"
#include "octet/telemetry/format.h"

namespace octet::telemetry {
namespace {

// Collects finite values. Values that are not finite carry no information: an infinite ratio means that the tensor lost nothing.
class Values {
 public:
  void add(double value) {
    if (std::isfinite(value)) values_.push_back(value);
  }
  std::size_t count() const { return values_.size(); }
  // The median of all, or of the first or last of them; the lower middle value if their number is even, and NaN if there are
  // none.
  double median() const { return lower_median(values_); }
  double median_of_first(std::size_t n) const {
    return lower_median({values_.begin(), values_.begin() + static_cast<std::ptrdiff_t>(n)});
  }
  double median_of_last(std::size_t n) const {
    return lower_median({values_.end() - static_cast<std::ptrdiff_t>(n), values_.end()});
  }

 private:
  std::vector<double> values_;  // in the order of the samples
};

struct TensorHealth {
  std::string layer;
  char operand;
  Values saturated, flushed, sqnr, kurtosis, amax_to_rms, alignment, edge;
  double sqnr_db = 0;  // median of `sqnr`
};

void add_attention(std::span<const AttentionSample> samples, std::vector<HealthFinding>& findings) {
  std::vector<std::string> layers;
  std::map<std::string, Values> largest;
  for (const AttentionSample& sample : samples) {
    if (!largest.contains(sample.layer)) layers.push_back(sample.layer);
    largest[sample.layer].add(sample.lse_max);
  }
  for (const std::string& layer : layers) {
    const double logit = largest[layer].median();
    if (!(logit > kLargeLogit)) continue;
    const bool diverging = logit > kDivergingLogit;
    findings.push_back({.layer = layer,
                        .operand = 'a',
                        .figure = "largest log-sum-exp",
                        .unit = "",
                        .value = logit,
                        .limit = diverging ? kDivergingLogit : kLargeLogit,
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
  return concat(operand, ", ", f.figure, ": ", value(f.value), ", the limit is ", fmt::format("{:g}", f.limit), spaced ? " " : "",
                f.unit, *f.source ? concat(" (", f.source, ")") : "");
}

std::vector<HealthFinding> find_unhealthy(std::span<const HealthSample> samples, std::span<const AttentionSample> attention) {
  std::vector<TensorHealth> tensors;
  std::map<std::string, std::size_t> places;
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
                         .edge = {}});
    }
    TensorHealth& tensor = tensors[place->second];
    tensor.saturated.add(sample.saturated_pct);
    tensor.flushed.add(sample.flushed_pct);
    tensor.sqnr.add(sample.sqnr_db);
    tensor.kurtosis.add(sample.kurtosis);
    tensor.amax_to_rms.add(sample.amax_to_rms);
    if (sample.alignment) tensor.alignment.add(*sample.alignment);
    if (sample.edge_pct) tensor.edge.add(*sample.edge_pct);
  }
  std::map<char, Values> peers;
  for (TensorHealth& tensor : tensors) {
    tensor.sqnr_db = tensor.sqnr.median();
    peers[tensor.operand].add(tensor.sqnr_db);
  }

  std::vector<HealthFinding> findings;
  for (TensorHealth& tensor : tensors) {
    const auto add = [&](const char* figure, const char* unit, double value, double limit) {
      findings.push_back(
          {.layer = tensor.layer, .operand = tensor.operand, .figure = figure, .unit = unit, .value = value, .limit = limit});
    };
    const double saturated = tensor.saturated.median(), flushed = tensor.flushed.median();
    const double least_db = peers[tensor.operand].median() - kMaxDbBelowPeers;
    if (saturated > kMaxSaturatedPct) add("saturated", "%", saturated, kMaxSaturatedPct);
    if (flushed > kMaxFlushedPct) add("flushed to zero", "%", flushed, kMaxFlushedPct);
    if (tensor.sqnr_db < least_db) add("signal to noise", "dB", tensor.sqnr_db, least_db);
    const auto watch = [&](const char* figure, const char* unit, double value, double limit, const char* source) {
      findings.push_back({.layer = tensor.layer,
                          .operand = tensor.operand,
                          .figure = figure,
                          .unit = unit,
                          .value = value,
                          .limit = limit,
                          .concern = Concern::watch,
                          .source = source});
    };
    const double aligned = tensor.alignment.median();
    if (aligned > kAligned) watch("cosine of a channel's gate and up rows", "", aligned, kAligned, "Fishman et al., 2024");
    const double edge = tensor.edge.median();
    if (edge > kMaxEdgePct) watch("at the edge of their binade", "%", edge, kMaxEdgePct, "Su et al., 2025");
    if (tensor.operand != 'x') continue;
    const double massive = tensor.amax_to_rms.median();
    if (massive > kMassive) watch("largest against root mean square", "×", massive, kMassive, "Sun et al., 2024");
    const std::size_t quarter = tensor.kurtosis.count() / 4;
    if (tensor.kurtosis.count() < kFewestForGrowth) continue;
    const double first = tensor.kurtosis.median_of_first(quarter), last = tensor.kurtosis.median_of_last(quarter);
    const double growth = last / std::max(first, 3.0);
    if (growth > kKurtosisGrowth) watch("growth of its kurtosis", "×", growth, kKurtosisGrowth, "Hernández-Cano et al., 2025");
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
