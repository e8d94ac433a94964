#include "octet/data/mixture.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "octet/base/require.h"

namespace octet::data {
namespace {

constexpr std::int64_t kSlots = 65536;
constexpr std::size_t kMaxSources = 1024;

// The number of slots of each source: its share of kSlots, rounded by the largest-remainder method, at least one.
std::vector<std::int32_t> slot_counts(std::span<const double> weights) {
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<std::int32_t> counts(weights.size());
  std::vector<double> wanted(weights.size());
  std::int64_t left = kSlots;
  for (std::size_t s = 0; s < weights.size(); ++s) {
    wanted[s] = weights[s] / sum * static_cast<double>(kSlots);
    counts[s] = std::max(1, static_cast<std::int32_t>(wanted[s]));
    left -= counts[s];
  }
  // Until all slots are assigned, the source with the largest deficit gains a slot, or the source with the largest surplus loses one.
  // The first source wins a tie.
  const auto lack = [&](std::size_t s) { return wanted[s] - static_cast<double>(counts[s]); };
  for (; left != 0; left += left > 0 ? -1 : 1) {
    std::size_t best = weights.size();
    for (std::size_t s = 0; s < weights.size(); ++s) {
      if (left < 0 && counts[s] == 1) continue;
      if (best == weights.size() || (left > 0 ? lack(s) > lack(best) : lack(s) < lack(best))) best = s;
    }
    counts[best] += left > 0 ? 1 : -1;
  }
  return counts;
}

}  // namespace

Mixture::Mixture(std::span<const double> weights) {
  demand(!weights.empty() && weights.size() <= kMaxSources, ExitCode::config, "data.source: ", weights.size(),
         " sources; from 1 to ", kMaxSources, " are possible");
  for (std::size_t s = 0; s < weights.size(); ++s) {
    demand(weights[s] > 0 && std::isfinite(weights[s]), ExitCode::config, "data.source ", s, ": weight ", weights[s],
           " must be a finite number above 0");
  }
  if (weights.size() == 1) {
    counts_ = {1};
    slots_ = {{0, 0}};
    return;
  }
  counts_ = slot_counts(weights);
  const std::int64_t common = std::accumulate(counts_.begin(), counts_.end(), std::int64_t{0},
                                              [](std::int64_t a, std::int32_t b) { return std::gcd(a, b); });
  for (std::int32_t& count : counts_) count = static_cast<std::int32_t>(count / common);

  // Tijdeman's algorithm: among the sources that are behind their share by at least 1 / n, with n = 2 S - 2 for S sources, choose the
  // source with the earliest deadline. All quantities here are integers in units of 1 / slots.
  const auto sources = counts_.size();
  const auto slots = kSlots / common;
  const auto n = static_cast<std::int64_t>(2 * sources - 2);
  slots_.reserve(static_cast<std::size_t>(slots));
  std::vector<std::int32_t> drawn(sources, 0);
  for (std::int64_t slot = 0; slot < slots; ++slot) {
    std::size_t chosen = sources;
    std::int64_t chosen_left = 0;
    for (std::size_t s = 0; s < sources; ++s) {
      const std::int64_t behind = counts_[s] * (slot + 1) - drawn[s] * slots;
      if (n * behind < slots) continue;
      const std::int64_t left = (n - 1) * slots - n * behind;  // number of slots before the deadline, times n * counts_[s]
      if (chosen == sources || left * counts_[chosen] < chosen_left * counts_[s]) {
        chosen = s;
        chosen_left = left;
      }
    }
    require(chosen < sources, "mixture: no source for slot ", slot);
    slots_.push_back({static_cast<std::int32_t>(chosen), drawn[chosen]++});
  }
}

Mixture::Draw Mixture::operator()(std::int64_t p) const {
  require(p >= 0, "mixture: sample number ", p);
  const auto slots = static_cast<std::int64_t>(slots_.size());
  const Slot slot = slots_[static_cast<std::size_t>(p % slots)];
  return {slot.source, p / slots * counts_[static_cast<std::size_t>(slot.source)] + slot.ordinal};
}

std::int64_t Mixture::drawn(std::int64_t s, std::int64_t p) const {
  require(p >= 0, "mixture: ", p, " samples");
  const auto slots = static_cast<std::int64_t>(slots_.size());
  const auto of_source = [&](const Slot& slot) { return slot.source == s; };
  return p / slots * counts_[static_cast<std::size_t>(s)] + std::count_if(slots_.begin(), slots_.begin() + p % slots, of_source);
}

double Mixture::share(std::int64_t s) const {
  return static_cast<double>(counts_[static_cast<std::size_t>(s)]) / static_cast<double>(slots_.size());
}

}  // namespace octet::data
