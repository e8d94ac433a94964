// Warns of experts that few tokens choose ("starving", telemetry/metrics.h), once for each expert.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "octet/telemetry/metrics.h"

namespace octet::train {

class ExpertWatch {
 public:
  // An expert starves if this many samples in a row show it.
  static constexpr int kSamples = 5;

  // Returns a sentence for each mixture with experts that have begun to starve.
  std::vector<std::string> observe(std::span<const telemetry::ExpertSample> samples);

 private:
  std::map<std::string, std::vector<int>> starving_;  // of each expert of a mixture: for how many samples
  std::set<std::pair<std::string, std::size_t>> said_;
};

}  // namespace octet::train
