#include "octet/plan/health.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "octet/base/require.h"

namespace octet::plan {
namespace {

// Collects finite values. Values that are not finite carry no information: an infinite ratio means that the tensor lost nothing.
class Values {
 public:
  void add(double value) {
    if (std::isfinite(value)) values_.push_back(value);
  }
  // The median; the lower middle value if their number is even, and NaN if there are none.
  double median() {
    if (values_.empty()) return std::numeric_limits<double>::quiet_NaN();
    const auto middle = values_.begin() + static_cast<std::ptrdiff_t>((values_.size() - 1) / 2);
    std::nth_element(values_.begin(), middle, values_.end());
    return *middle;
  }

 private:
  std::vector<double> values_;
};

struct TensorHealth {
  std::string layer;
  char operand;
  Values saturated, flushed, sqnr;
  double sqnr_db = 0;  // median of `sqnr`
};

}  // namespace

std::vector<HealthFinding> find_unhealthy(std::span<const telemetry::HealthSample> samples) {
  std::vector<TensorHealth> tensors;
  std::map<std::string, std::size_t> places;
  for (const telemetry::HealthSample& sample : samples) {
    const auto [place, is_new] = places.emplace(sample.tensor, tensors.size());
    if (is_new) {
      const std::string& name = sample.tensor;
      require(name.size() > 2 && name[name.size() - 2] == '.', "plan: health of ", name);
      tensors.push_back(
          {.layer = name.substr(0, name.size() - 2), .operand = name.back(), .saturated = {}, .flushed = {}, .sqnr = {}});
    }
    TensorHealth& tensor = tensors[place->second];
    tensor.saturated.add(sample.saturated_pct);
    tensor.flushed.add(sample.flushed_pct);
    tensor.sqnr.add(sample.sqnr_db);
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
  }
  return findings;
}

std::vector<std::string> layers_of(const std::vector<HealthFinding>& findings) {
  std::vector<std::string> layers;
  for (const HealthFinding& finding : findings) {
    if (std::find(layers.begin(), layers.end(), finding.layer) == layers.end()) layers.push_back(finding.layer);
  }
  return layers;
}

}  // namespace octet::plan
