#include "octet/train/expert_watch.h"

#include <numeric>

#include "octet/base/require.h"

namespace octet::train {

std::vector<std::string> ExpertWatch::observe(std::span<const telemetry::ExpertSample> samples) {
  std::vector<std::string> sentences;
  for (const telemetry::ExpertSample& sample : samples) {
    const std::size_t count = sample.chosen.size();
    const double all = static_cast<double>(std::accumulate(sample.chosen.begin(), sample.chosen.end(), std::int64_t{0}));
    std::vector<int>& starving = starving_[sample.layer];
    starving.resize(count);
    std::string experts;
    int found = 0;
    for (std::size_t e = 0; e < count; ++e) {
      const bool starves = static_cast<double>(sample.chosen[e]) * static_cast<double>(count) < telemetry::kStarved * all;
      starving[e] = starves ? starving[e] + 1 : 0;
      if (starving[e] < kSamples || !said_.emplace(sample.layer, e).second) continue;
      experts += concat(found == 0 ? "" : ", ", e);
      ++found;
    }
    if (found == 0) continue;
    sentences.push_back(concat("step ", sample.step, ": ", sample.layer, ": ", found == 1 ? "expert " : "experts ", experts,
                               found == 1 ? " starves" : " starve", ": less than ", telemetry::kStarved,
                               " of a fair share of the tokens in ", kSamples,
                               " samples in a row. A larger model.router_aux_loss_coef spreads tokens more evenly, or a "
                               "model.router_bias_update_rate"));
  }
  return sentences;
}

}  // namespace octet::train
