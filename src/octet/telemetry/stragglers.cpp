#include "octet/telemetry/stragglers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "octet/base/median.h"
#include "octet/base/require.h"
#include "octet/base/utc.h"
#include "octet/telemetry/format.h"

namespace octet::telemetry {
namespace {

using Figure = std::optional<double> GpuFigures::*;

std::optional<double> median_of_others(std::span<const GpuFigures> gpus, int rank, Figure figure) {
  std::vector<double> known;
  for (std::size_t i = 0; i < gpus.size(); ++i) {
    if (static_cast<int>(i) != rank && gpus[i].*figure) known.push_back(*(gpus[i].*figure));
  }
  return known.empty() ? std::nullopt : std::optional(lower_median(std::move(known)));
}

}  // namespace

StragglerWatch::StragglerWatch(double least_speed, std::vector<int> kinds)
    : least_speed_(least_speed), kinds_(std::move(kinds)), states_(kinds_.size()) {}

std::vector<int> StragglerWatch::look(std::int64_t step, std::span<const double> own_s) {
  require(own_s.size() == states_.size(), "times of ", own_s.size(), " ranks of ", states_.size());
  std::map<int, std::vector<std::size_t>> groups;
  for (std::size_t rank = 0; rank < own_s.size(); ++rank) {
    if (std::isfinite(own_s[rank]) && own_s[rank] > 0) groups[kinds_[rank]].push_back(rank);
  }
  std::vector<int> changed;
  for (const auto& [kind, ranks] : groups) {
    if (ranks.size() < 2) continue;
    std::vector<double> times;
    for (const std::size_t rank : ranks) times.push_back(own_s[rank]);
    const double median_s = lower_median(std::move(times));
    for (const std::size_t rank : ranks) {
      if (judge(states_[rank], step, own_s[rank], median_s)) changed.push_back(static_cast<int>(rank));
    }
  }
  std::sort(changed.begin(), changed.end());
  return changed;
}

// Returns whether the rank has just become a straggler or has just ceased to be one.
bool StragglerWatch::judge(State& state, std::int64_t step, double own_s, double median_s) const {
  const bool slow = median_s < least_speed_ * own_s;
  if (slow == state.stands) {
    state.contradictions = 0;
  } else if (++state.contradictions == 1) {
    state.contradicted_at = step;
    if (slow) {
      state.intervals = 0;
      state.own_s = state.median_s = 0;
    }
  }
  if (slow) {
    ++state.intervals;
    state.own_s += own_s;
    state.median_s += median_s;
  }
  if (state.contradictions < kIntervals) return false;
  state.contradictions = 0;
  state.stands = slow;
  state.since_step = state.contradicted_at;
  return true;
}

StragglerRecord record_of(std::int64_t step, int rank, const std::string& name, const StragglerWatch::State& state,
                          std::span<const GpuFigures> gpus) {
  StragglerRecord record{.step = step,
                         .time = utc_now(),
                         .rank = rank,
                         .name = name,
                         .event = state.stands ? "slow" : "recovered",
                         .since_step = state.since_step};
  if (state.stands) {
    const auto count = static_cast<double>(state.intervals);
    record.slower_pct = 100 * state.slower();
    record.own_s = state.own_s / count;
    record.median_s = state.median_s / count;
  }
  if (gpus.empty()) return record;
  const GpuFigures& own = gpus[static_cast<std::size_t>(rank)];
  record.clock_mhz = own.clock_mhz;
  record.power_w = own.power_w;
  record.temperature_c = own.temperature_c;
  record.slowed_by = own.slowed_by;
  record.clock_others_mhz = median_of_others(gpus, rank, &GpuFigures::clock_mhz);
  record.power_others_w = median_of_others(gpus, rank, &GpuFigures::power_w);
  record.temperature_others_c = median_of_others(gpus, rank, &GpuFigures::temperature_c);
  return record;
}

std::string sentence_of(const StragglerRecord& record) {
  if (!record.is_slow())
    return fmt::format("{} is as fast as the others again since step {}", record.name, format_count(record.since_step));
  std::string text = fmt::format("{} computes {:.0f}% slower than the median since step {}", record.name, record.slower_pct,
                                 format_count(record.since_step));
  std::string facts;
  const auto add = [&](const std::string& fact) { facts += (facts.empty() ? ": " : "; ") + fact; };
  const auto compare = [&](const char* unit, const std::optional<double>& own, const std::optional<double>& others) {
    if (own) add(fmt::format("{} {}{}", format_count(*own), unit, others ? ", others " + format_count(*others) : ""));
  };
  compare("MHz", record.clock_mhz, record.clock_others_mhz);
  compare("W", record.power_w, record.power_others_w);
  compare("°C", record.temperature_c, record.temperature_others_c);
  if (!record.slowed_by.empty()) add("its clock is held down by " + record.slowed_by);
  return text + facts;
}

std::vector<StragglerRecord> standing(const std::vector<StragglerRecord>& records, std::string_view started) {
  std::map<std::int64_t, StragglerRecord> last;
  for (const StragglerRecord& record : records) {
    if (record.time >= started) last[record.rank] = record;
  }
  std::vector<StragglerRecord> result;
  for (auto& [rank, record] : last) {
    if (record.is_slow()) result.push_back(std::move(record));
  }
  return result;
}

}  // namespace octet::telemetry
