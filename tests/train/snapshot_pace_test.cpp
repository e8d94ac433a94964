#include "octet/train/snapshot_pace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <tuple>

namespace octet::train {
namespace {

TEST(SnapshotPace, ReadsItsText) {
  for (const char* text : {"", "-1", "2.5", "every", "5 ", "99999999999999999999"})
    EXPECT_FALSE(SnapshotPace::parse(text)) << text;
  EXPECT_TRUE(SnapshotPace::parse("auto")->is_auto());
  EXPECT_TRUE(SnapshotPace::parse("0")->takes_none());
  EXPECT_FALSE(SnapshotPace::parse("3")->is_auto());
}

TEST(SnapshotPace, AFixedNumberOfSteps) {
  SnapshotPace pace = *SnapshotPace::parse("4");
  pace.took(4, 100, 1);  // what it costs does not matter
  for (std::int64_t step = 5; step <= 20; ++step) EXPECT_EQ(pace.due(step), step % 4 == 0) << step;
  SnapshotPace none = *SnapshotPace::parse("0");
  for (std::int64_t step = 1; step <= 20; ++step) EXPECT_FALSE(none.due(step));
}

TEST(SnapshotPace, AutoCostsOnePercent) {
  SnapshotPace pace = *SnapshotPace::parse("auto");
  EXPECT_FALSE(pace.due(41));
  EXPECT_TRUE(pace.due(42)) << "the second step of a process that goes on from step 40";
  pace.took(42, 0.5, 2);  // 0.5 s are 1% of 25 steps
  EXPECT_FALSE(pace.due(66));
  EXPECT_TRUE(pace.due(67));
  EXPECT_TRUE(pace.due(69)) << "still due if the one before was not finished";
  pace.took(69, 0, 2);
  EXPECT_TRUE(pace.due(70));
  pace.took(70, 1e9, 1e-3);
  EXPECT_FALSE(pace.due(100'069));
  EXPECT_TRUE(pace.due(100'070));
}

// The least sum of what snapshots cost and what failures repeat, found by trying, is where Young's formula says.
TEST(SnapshotPace, AutoSpacesSnapshotsForFailures) {
  constexpr double kStepS = 2;
  for (const auto& [cost_s, mtbf_hours, ranks] :
       {std::tuple(0.1, 8000.0, 256), std::tuple(0.014, 8000.0, 16384), std::tuple(3.0, 500.0, 8)}) {
    const double mtbf_s = 3600 * mtbf_hours / ranks;
    const auto lost = [&](std::int64_t steps) {
      const double apart_s = static_cast<double>(steps) * kStepS;
      return cost_s / apart_s + apart_s / (2 * mtbf_s);
    };
    const std::int64_t apart = SnapshotPace::of({.interval = 0, .mtbf_hours = mtbf_hours}, ranks).between(cost_s, kStepS, 0);
    std::int64_t best = 1;
    for (std::int64_t steps = 1; steps < 20'000; ++steps) best = lost(steps) < lost(best) ? steps : best;
    EXPECT_NEAR(static_cast<double>(apart), static_cast<double>(best), 1) << cost_s << " " << ranks;
  }
}

TEST(SnapshotPace, AutoIsNeverSparserThanCheckpointsNorTooCheap) {
  const auto apart = [](double mtbf_hours, std::int64_t interval, double cost_s = 0.014) {
    return SnapshotPace::of({.interval = interval, .mtbf_hours = mtbf_hours}, 8).between(cost_s, 1, 0);
  };
  EXPECT_EQ(apart(0, 500), 2) << "1% of the time";
  EXPECT_EQ(apart(1e9, 0), 70) << "0.02% of the time";
  EXPECT_EQ(apart(1e9, 30), 30) << "as often as checkpoints";
  EXPECT_EQ(apart(1e-6, 0), 2) << "1% of the time";
  EXPECT_EQ(apart(1e9, 30, 0.5), 50) << "1% of the time";
  EXPECT_EQ(SnapshotPace::of({.interval = 1, .memory_every = "7", .mtbf_hours = 1}, 1).between(1, 1, 0), 7) << "as the user says";
}

// between() says what a run does that takes snapshots whenever one is due and the one before is complete.
TEST(SnapshotPace, BetweenIsWhatARunDoes) {
  for (const char* text : {"auto", "1", "4", "7"}) {
    for (const std::int64_t least : {0, 1, 4, 9, 30}) {
      SnapshotPace pace = *SnapshotPace::parse(text);
      constexpr std::int64_t kBegin = 28;  // a multiple of all numbers
      pace.took(kBegin, 0.25, 2);
      std::int64_t next = kBegin + std::max<std::int64_t>(1, least);
      while (!pace.due(next)) ++next;
      EXPECT_EQ(pace.between(0.25, 2, least), next - kBegin) << text << " " << least;
    }
  }
  EXPECT_EQ(SnapshotPace::parse("9000000000000000000")->between(1, 1, 5), 9'000'000'000'000'000'000);
}

}  // namespace
}  // namespace octet::train
