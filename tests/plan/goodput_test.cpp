#include "octet/plan/goodput.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace octet::plan {
namespace {

// Simulates a run, save by save and failure by failure, and returns the share of its time that was productive.
double played(const Upkeep& upkeep, double interval_s, int failures) {
  std::mt19937_64 random(7);
  std::exponential_distribution<double> until_failure(1 / upkeep.mtbf_s);
  double now = 0, failure = until_failure(random), done = 0;  // `done`: training that the run has behind it
  double durable = 0, writing = 0, written_at = -1;           // `writing` is durable from `written_at` on
  for (int failed = 0; failed < failures;) {
    if (written_at >= 0 && written_at <= now) durable = writing, written_at = -1;
    const double segment_end = now + interval_s + upkeep.save_s;
    if (segment_end < failure) {
      if (written_at >= 0 && written_at <= segment_end) durable = writing;
      now = segment_end;
      done += interval_s;
      writing = done;
      written_at = now + upkeep.write_s;
      continue;
    }
    if (written_at >= 0 && written_at <= failure) durable = writing;
    written_at = -1;
    done = durable;
    now = failure;
    ++failed;
    failure = now + until_failure(random);
    for (; failure < now + upkeep.recover_s; ++failed) {  // fails again while it recovers
      now = failure;
      failure = now + until_failure(random);
    }
    now += upkeep.recover_s;
  }
  return durable / now;
}

TEST(Goodput, IsThatOfARunThatIsPlayed) {
  struct Case {
    Upkeep upkeep;
    double interval_s;
  };
  for (const auto& [upkeep, interval_s] : {Case{{.mtbf_s = 10000, .save_s = 0, .write_s = 0, .recover_s = 30}, 600},
                                           Case{{.mtbf_s = 10000, .save_s = 20, .write_s = 100, .recover_s = 300}, 600},
                                           Case{{.mtbf_s = 2000, .save_s = 60, .write_s = 0, .recover_s = 600}, 900},
                                           Case{{.mtbf_s = 50000, .save_s = 5, .write_s = 400, .recover_s = 20}, 500}}) {
    const Goodput found = goodput_of(upkeep, interval_s);
    const int failures = 100000;
    // What one failure costs varies by about its mean, so the mean over all failures is known to a fraction 1 / sqrt(failures).
    // The model also neglects that a second failure may come while a checkpoint is written, at most write_s / mtbf_s.
    const double lost = 1 - played(upkeep, interval_s, failures);
    EXPECT_NEAR(1 - found.productive, lost, (4 / std::sqrt(failures) + upkeep.write_s / upkeep.mtbf_s) * lost) << interval_s;
    EXPECT_NEAR(found.productive + found.saves + found.recovery + found.repeated, 1, 1e-12);
    EXPECT_GE(found.repeated, 0);
  }
}

TEST(Goodput, IsNearlyWholeWithoutFailures) {
  const Goodput found = goodput_of({.mtbf_s = 1e12, .save_s = 1, .write_s = 10, .recover_s = 10}, 99);
  EXPECT_NEAR(found.productive, 0.99, 1e-9);
  EXPECT_NEAR(found.saves, 0.01, 1e-9);
}

TEST(Goodput, WaitsForStorageThatIsSlowerThanTraining) {
  const Goodput found = goodput_of({.mtbf_s = 1e12, .save_s = 1, .write_s = 199, .recover_s = 10}, 100);
  EXPECT_NEAR(found.productive, 0.5, 1e-8);
  EXPECT_NEAR(found.saves, 0.5, 1e-8);
}

TEST(Goodput, OfARunThatFailsAllTheTimeIsNone) {
  const Goodput found = goodput_of({.mtbf_s = 60, .save_s = 1, .write_s = 60, .recover_s = 600}, 600);
  EXPECT_LT(found.productive, 1e-6);
  EXPECT_GT(found.recovery, 0.999);
}

// Young's rule, sqrt(2 x save x mtbf), holds if saves are short and failures rare (Communications of the ACM 17, 1974).
TEST(BestInterval, IsYoungsForShortSaves) {
  for (const double save : {0.5, 2., 8.}) {
    const double young = std::sqrt(2 * save * 1e6);
    EXPECT_NEAR(static_cast<double>(best_interval({.mtbf_s = 1e6, .save_s = save, .recover_s = 30}, 0.1)) * 0.1, young,
                0.01 * young);
  }
}

TEST(BestInterval, IsNoShorterThanAWriteAndNoWorseThanItsNeighbours) {
  EXPECT_EQ(best_interval({.mtbf_s = 1e6, .save_s = 0, .write_s = 95, .recover_s = 30}, 10), 10);
  EXPECT_EQ(best_interval({.mtbf_s = 1e6, .save_s = 0, .write_s = 0, .recover_s = 30}, 10), 1);
  const Upkeep upkeep{.mtbf_s = 30000, .save_s = 7, .write_s = 20, .recover_s = 60};
  const std::int64_t best = best_interval(upkeep, 3);
  const auto share = [&](std::int64_t steps) { return goodput_of(upkeep, 3. * static_cast<double>(steps)).productive; };
  const std::int64_t rare = best_interval(upkeep, 3, 0.001);
  EXPECT_GE(share(rare), share(best) - 0.001);
  EXPECT_LT(share(rare + 1), share(best) - 0.001);
  for (std::int64_t steps = 7; steps < 2000; ++steps) EXPECT_LE(share(steps), share(best)) << steps;
}

}  // namespace
}  // namespace octet::plan
