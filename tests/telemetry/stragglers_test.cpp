#include "octet/telemetry/stragglers.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

#include "octet/telemetry/jsonl.h"
#include "octet/telemetry/recorder.h"
#include "support/folder.h"

namespace octet::telemetry {
namespace {

using Ranks = std::vector<int>;

// Looks at intervals of ten steps in which the ranks took so long, and returns what changed by step.
std::map<std::int64_t, Ranks> changes(StragglerWatch& watch, const std::vector<std::vector<double>>& intervals,
                                      std::int64_t step = 0) {
  std::map<std::int64_t, Ranks> result;
  for (const std::vector<double>& own_s : intervals) {
    step += 10;
    if (const Ranks changed = watch.look(step, own_s); !changed.empty()) result[step] = changed;
  }
  return result;
}
std::vector<std::vector<double>> times(int count, const std::vector<double>& own_s) {
  return std::vector<std::vector<double>>(static_cast<std::size_t>(count), own_s);
}
std::vector<std::vector<double>> operator+(std::vector<std::vector<double>> a, const std::vector<std::vector<double>>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}
using Changes = std::map<std::int64_t, Ranks>;

const std::vector<double> kFast = {1, 1.02, 0.98, 1.01}, kSlow = {1, 1.02, 0.98, 1.25};

TEST(Stragglers, StandAfterFiveSlowIntervalsAndEndAfterFiveFastOnes) {
  StragglerWatch watch(0.85, {0, 0, 0, 0});
  const auto run = times(3, kFast) + times(9, kSlow) + times(7, kFast);
  EXPECT_EQ(changes(watch, run), (Changes{{80, {3}}, {170, {3}}}));
  EXPECT_FALSE(watch.of(3).stands);
  EXPECT_EQ(watch.of(3).since_step, 130) << "the first fast interval";
}

TEST(Stragglers, TellHowSlowTheyWere) {
  StragglerWatch watch(0.85, {0, 0, 0, 0});
  changes(watch, times(3, kFast) + times(2, kSlow) + times(1, {1, 1, 1, 1.5}) + times(2, kSlow));
  ASSERT_TRUE(watch.of(3).stands);
  EXPECT_EQ(watch.of(3).since_step, 40);
  EXPECT_EQ(watch.of(3).intervals, 5);
  // The lower median of {0.98, 1, 1.02, 1.25} is 1, and that of {1, 1, 1, 1.5}.
  EXPECT_NEAR(watch.of(3).slower(), 1 - 5 / (4 * 1.25 + 1.5), 1e-12);
  for (const int rank : {0, 1, 2}) EXPECT_FALSE(watch.of(rank).stands);
}

TEST(Stragglers, TheLimitIsAShareOfTheMediansSpeed) {
  for (const auto& [own_s, stands] : {std::pair(1 / 0.86, false), {1 / 0.84, true}}) {
    StragglerWatch watch(0.85, {0, 0, 0});
    changes(watch, times(5, {1, 1, own_s}));
    EXPECT_EQ(watch.of(2).stands, stands) << own_s;
  }
}

TEST(Stragglers, FlapsAreNotTold) {
  StragglerWatch watch(0.85, {0, 0, 0, 0});
  std::vector<std::vector<double>> flaps;
  for (int i = 0; i < 10; ++i) flaps = flaps + times(4, kSlow) + times(1, kFast);
  EXPECT_EQ(changes(watch, flaps), Changes{});
  flaps.clear();
  for (int i = 0; i < 10; ++i) flaps = flaps + times(4, kFast) + times(1, kSlow);
  EXPECT_EQ(changes(watch, times(5, kSlow) + flaps), (Changes{{50, {3}}})) << "a straggler stays one";
  EXPECT_EQ(watch.of(3).intervals, 15);
}

TEST(Stragglers, TwoAtOnce) {
  StragglerWatch watch(0.85, {0, 0, 0, 0, 0});
  EXPECT_EQ(changes(watch, times(5, {2, 1, 1, 1.3, 1})), (Changes{{50, {0, 3}}}));
  StragglerWatch half(0.85, {0, 0, 0, 0});
  EXPECT_EQ(changes(half, times(5, {1.5, 1, 1.5, 1})), (Changes{{50, {0, 2}}})) << "the faster middle one is the median";
}

TEST(Stragglers, OneRankHasNobodyToBeComparedWith) {
  StragglerWatch alone(0.85, {0});
  EXPECT_EQ(changes(alone, times(9, {7})), Changes{});
  StragglerWatch two(0.85, {0, 0});
  EXPECT_EQ(changes(two, times(5, {1, 2})), (Changes{{50, {1}}}));
}

// The stages of a pipeline have other work: one has the head.
TEST(Stragglers, RanksWithOtherWorkAreNotCompared) {
  StragglerWatch watch(0.85, {0, 0, 0, 1, 1, 1});
  EXPECT_EQ(changes(watch, times(5, {1, 1, 1, 2, 2, 3})), (Changes{{50, {5}}}));
  StragglerWatch stages(0.85, {0, 1, 2});
  EXPECT_EQ(changes(stages, times(9, {1, 2, 3})), Changes{});
}

TEST(Stragglers, WhatIsNoTimeCountsNowhere) {
  const double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();
  StragglerWatch watch(0.85, {0, 0, 0, 0});
  for (const double no_time : {nan, 0.0, -1.0, infinity}) {
    EXPECT_EQ(changes(watch, times(9, {1, no_time, 1, 1})), Changes{}) << no_time;
    EXPECT_EQ(changes(watch, times(9, {no_time, no_time, no_time, 1})), Changes{}) << no_time;
  }
  EXPECT_EQ(changes(watch, times(4, kSlow) + times(3, {1, 1, 1, nan}) + times(1, kSlow), 100), (Changes{{180, {3}}}))
      << "unknown intervals neither count nor clear";
  EXPECT_EQ(changes(watch, times(9, {nan, nan, nan, nan}), 200), Changes{});
  EXPECT_TRUE(watch.of(3).stands);
}

StragglerWatch::State slow_state() {
  StragglerWatch watch(0.85, {0, 0, 0});
  changes(watch, times(5, {0.82, 0.82, 1}), 4190);
  return watch.of(2);
}

TEST(StragglerRecord, SaysWhatTheGpusSay) {
  const std::vector<GpuFigures> gpus = {{.clock_mhz = 1755, .power_w = 690, .temperature_c = 61},
                                        {.clock_mhz = 1740, .temperature_c = 64},
                                        {.clock_mhz = 1215, .power_w = 409.6, .temperature_c = 88, .slowed_by = "heat"}};
  const StragglerRecord record = record_of(4240, 2, "rank 2 (node1 GPU 5)", slow_state(), gpus);
  EXPECT_EQ(sentence_of(record),
            "rank 2 (node1 GPU 5) computes 18% slower than the median since step 4,200: 1,215 MHz, others 1,740; 410 W, others "
            "690; 88 °C, others 61; its clock is held down by heat");
  EXPECT_NEAR(record.own_s, 1, 1e-12);
  EXPECT_NEAR(record.median_s, 0.82, 1e-12);
  EXPECT_NEAR(record.slower_pct, 18, 1e-9);
}

TEST(StragglerRecord, IsShortWithoutNvml) {
  EXPECT_EQ(sentence_of(record_of(4240, 2, "rank 2 (node1)", slow_state(), {})),
            "rank 2 (node1) computes 18% slower than the median since step 4,200");
  const std::vector<GpuFigures> silent(3);
  EXPECT_EQ(sentence_of(record_of(4240, 2, "rank 2 (node1)", slow_state(), silent)),
            "rank 2 (node1) computes 18% slower than the median since step 4,200");
  StragglerWatch watch(0.85, {0, 0});
  changes(watch, times(5, {1, 2}) + times(5, {1, 1}));
  const StragglerRecord record = record_of(100, 1, "rank 1 (node1)", watch.of(1), {});
  EXPECT_EQ(sentence_of(record), "rank 1 (node1) is as fast as the others again since step 60");
  EXPECT_TRUE(std::isnan(record.own_s));
}

// A start of the run knows nothing of what an earlier one found, and begins to count anew.
TEST(StragglerRecord, TheNewestOfEachRankSinceTheStartStands) {
  const auto record = [](int rank, const char* time, const char* event) {
    return StragglerRecord{.time = time, .rank = rank, .event = event};
  };
  const std::vector<StragglerRecord> records = {
      record(7, "2026-11-25T10:00:00Z", "slow"), record(3, "2026-11-26T10:00:00Z", "slow"),
      record(1, "2026-11-26T10:00:01Z", "slow"), record(3, "2026-11-26T10:05:00Z", "recovered"),
      record(0, "2026-11-26T10:06:00Z", "slow")};
  Ranks ranks;
  for (const StragglerRecord& r : standing(records, "2026-11-26T09:00:00Z")) ranks.push_back(static_cast<int>(r.rank));
  EXPECT_EQ(ranks, (Ranks{0, 1}));
}

// A rollback takes steps back, but not what is known about machines.
TEST(StragglerRecord, StaysInItsFile) {
  const octet::testing::TemporaryFolder folder;
  const auto path = folder.path() / "stragglers.jsonl";
  {
    Recorder recorder({.directory = folder.path(), .tensorboard = false});
    EXPECT_FALSE(std::filesystem::exists(path)) << "there is no straggler yet";
    recorder.write(record_of(4240, 2, "rank 2 (node1)", slow_state(), {}));
    recorder.rewind(4000);
    recorder.sync();
  }
  Recorder recorder({.directory = folder.path(), .last_step = 4000, .tensorboard = false});
  recorder.write(record_of(4250, 1, "rank 1 (node1)", slow_state(), std::vector<GpuFigures>(3, {.clock_mhz = 1000})));
  const auto contents = read_jsonl<StragglerRecord>(path);
  EXPECT_EQ(contents.broken_lines, 0);
  ASSERT_EQ(contents.records.size(), 2u);
  EXPECT_EQ(contents.records[0].step, 4240);
  EXPECT_EQ(contents.records[0].name, "rank 2 (node1)");
  EXPECT_FALSE(contents.records[0].clock_mhz);
  EXPECT_EQ(contents.records[1].clock_others_mhz, 1000);
  EXPECT_TRUE(contents.records[1].is_slow());
}

}  // namespace
}  // namespace octet::telemetry
