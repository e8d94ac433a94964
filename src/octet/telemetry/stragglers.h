// Stragglers: ranks that compute slower than others with the same work. Steps take equally long on all ranks, because every
// rank waits for the slowest. So ranks are compared by their own time: the time of a step without its waits for other ranks.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "octet/telemetry/metrics.h"

namespace octet::telemetry {

class StragglerWatch {
 public:
  // A rank becomes a straggler after this many slow intervals in a row, and is one no longer after as many fast ones.
  static constexpr int kIntervals = 5;

  // A rank is slow if its speed is below `least_speed` times the median's. Ranks with the same `kinds[rank]` have the same work
  // and are compared with each other.
  StragglerWatch(double least_speed, std::vector<int> kinds);

  struct State {
    bool stands = false;
    std::int64_t since_step = 0;     // of the first interval in which the rank was slow, or fast again
    std::int64_t intervals = 0;      // slow ones of the last straggling
    double own_s = 0, median_s = 0;  // sums over these intervals
    // By which share of the median's speed the rank was slower.
    double slower() const { return 1 - median_s / own_s; }

   private:
    friend class StragglerWatch;
    int contradictions = 0;  // intervals in a row that are slow if the rank is no straggler, or fast if it is one
    std::int64_t contradicted_at = 0;
  };

  // Judges an interval by the own time of each rank, and returns the ranks that become stragglers or stop being stragglers. For
  // an even number of ranks, the median is the faster of the middle two. A rank whose time is not a positive number, or that
  // has no rank to be compared with, keeps its state and does not count.
  std::vector<int> look(std::int64_t step, std::span<const double> own_s);
  const State& of(int rank) const { return states_[static_cast<std::size_t>(rank)]; }

 private:
  bool judge(State& state, std::int64_t step, double own_s, double median_s) const;

  double least_speed_;
  std::vector<int> kinds_;
  std::vector<State> states_;
};

// NVML's readings of a GPU.
struct GpuFigures {
  std::optional<double> clock_mhz{}, power_w{}, temperature_c{};
  std::string slowed_by{};  // why its clock is held down: "heat"; "" if it is not, or nobody knows
};

// A line of stragglers.jsonl: a rank became a straggler, or recovered.
struct StragglerRecord {
  std::int64_t step = 0;
  std::string time{};
  std::int64_t rank = 0;
  std::string name{};
  std::string event{};
  std::int64_t since_step = 0;
  double slower_pct = kUnknown;
  double own_s = kUnknown;
  double median_s = kUnknown;
  std::optional<double> clock_mhz{}, clock_others_mhz{};
  std::optional<double> power_w{}, power_others_w{};
  std::optional<double> temperature_c{}, temperature_others_c{};
  std::string slowed_by{};

  bool is_slow() const { return event == "slow"; }
};

// Returns a record of a rank's new state. `gpus` are the GPUs of all ranks; empty if unknown.
StragglerRecord record_of(std::int64_t step, int rank, const std::string& name, const StragglerWatch::State& state,
                          std::span<const GpuFigures> gpus);
// "rank 13 (node1 GPU 5) computes 18% slower than the median since step 4,200: 1,215 MHz, others 1,755; ..."; or "rank 13
// (node1 GPU 5) is as fast as the others again since step 5,100".
std::string sentence_of(const StragglerRecord& record);
// Returns the stragglers that were found since `started` (UTC) and have not recovered, in the order of their ranks. `records`
// are in the order of their file.
std::vector<StragglerRecord> standing(const std::vector<StragglerRecord>& records, std::string_view started);

template <class Record, class Visitor>
requires std::is_same_v<std::remove_const_t<Record>, StragglerRecord>
void visit_fields(Record& r, Visitor&& visit) {
  visit(FieldName{.json = "step", .help = "The logged step at which this was found."}, r.step);
  visit(FieldName{.json = "time", .help = "UTC, ISO 8601."}, r.time);
  visit(FieldName{.json = "rank", .help = "Number of the rank."}, r.rank);
  visit(FieldName{.json = "name", .help = "The rank with its host and its GPU."}, r.name);
  visit(FieldName{.json = "event", .help = "slow: the rank is a straggler from now on; recovered: no longer."}, r.event);
  visit(FieldName{.json = "since_step", .help = "The first logged step at which the rank was slow, or fast again."},
        r.since_step);
  visit(FieldName{.json = "slower_pct",
                  .help = "Per cent of the median rank's speed by which the rank is slower, a mean since since_step; "
                          "null after it has recovered."},
        r.slower_pct);
  visit(FieldName{.json = "own_s",
                  .help = "Seconds of a step that the rank did not wait for others, a mean since since_step; null after it has "
                          "recovered."},
        r.own_s);
  visit(FieldName{.json = "median_s", .help = "The same of the median among the ranks with the same work."}, r.median_s);
  visit(FieldName{.json = "clock_mhz", .help = "Clock of the rank's GPU when this was found; null if NVML does not say."},
        r.clock_mhz);
  visit(FieldName{.json = "clock_others_mhz", .help = "The median of the other ranks' GPUs."}, r.clock_others_mhz);
  visit(FieldName{.json = "power_w", .help = "Power of the rank's GPU in watts."}, r.power_w);
  visit(FieldName{.json = "power_others_w", .help = "The median of the other ranks' GPUs."}, r.power_others_w);
  visit(FieldName{.json = "temperature_c", .help = "Temperature of the rank's GPU in degrees Celsius."}, r.temperature_c);
  visit(FieldName{.json = "temperature_others_c", .help = "The median of the other ranks' GPUs."}, r.temperature_others_c);
  visit(FieldName{.json = "slowed_by",
                  .help = "Why the clock of the rank's GPU is held down, as NVML says; \"\" if it is not, or unknown."},
        r.slowed_by);
}

}  // namespace octet::telemetry
