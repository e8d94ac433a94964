#include "octet/app/restart_budget.h"

#include <gtest/gtest.h>

#include <set>

#include "octet/base/utc.h"

namespace octet::app {
namespace {

constexpr int kKilled = 137, kPeer = 78, kData = 76;

RestartBudget::Decision after(RestartBudget& budget, double at_s, std::int64_t saved_step, int code = kKilled) {
  return budget.judge({.code = code, .saved_step = saved_step, .at_s = at_s});
}

// Every code that a process can end with. docs/guides/keep-running.md has the table.
TEST(RestartBudget, StartsAgainOnlyWhereThatCanHelp) {
  const std::set<int> final = {0, 2, 3, 75, 76, 77, 130};
  for (int code = 0; code < 256; ++code) EXPECT_EQ(most_restarts(code, Cause::unknown) > 0, !final.contains(code)) << code;
}

// A file server that has gone gets two minutes to come back. A checkpoint afterwards shows that it has.
TEST(RestartBudget, WaitsTwiceForStorage) {
  RestartBudget budget({.restarts = 5, .per_hour = 0});
  const auto fails = [&](std::int64_t saved_step) {
    return budget.judge({.code = kData, .cause = Cause::storage, .saved_step = saved_step});
  };
  for (const std::int64_t step : {10, 20}) {
    for (int i = 0; i < 2; ++i) {
      const RestartBudget::Decision decision = fails(step);
      EXPECT_TRUE(decision.restarts);
      EXPECT_EQ(decision.wait_s, 60);
    }
  }
  const RestartBudget::Decision last = fails(20);
  EXPECT_FALSE(last.restarts);
  EXPECT_EQ(last.code, kData);
  EXPECT_EQ(last.why, "2 restarts have not brought the storage back");
  EXPECT_TRUE(after(budget, 0, 20).restarts) << "a kill is another matter";
}

// `octet status` shows these.
TEST(RestartBudget, SaysHowMuchIsUsed) {
  const auto attempt = [](std::int64_t from_step, std::int64_t saved, const std::string& next) {
    return telemetry::Attempt{.from_step = from_step, .ended = utc_now(), .code = 137, .checkpoint_step = saved, .next = next};
  };
  std::vector<telemetry::Attempt> all;
  const auto use = [&](std::int64_t step, double at_s = 100) { return budget_after(all, {}, 100).use(step, at_s); };
  EXPECT_EQ(use(10).restarts, 0);
  EXPECT_FALSE(use(10).since_step);
  all = {attempt(0, 10, "restarts"), attempt(10, 10, "restarts in 5 s"), attempt(10, 10, "restarts with more hosts")};
  EXPECT_EQ(use(10).restarts, 2);
  EXPECT_EQ(use(10).since_step, 10);
  EXPECT_EQ(use(20).restarts, 0) << "a checkpoint since the last restart";
  EXPECT_EQ(use(20).in_hour, 2);
  EXPECT_EQ(use(20, 100 + 3601).in_hour, 0);
  all.push_back(attempt(12, 10, "restarts"));
  EXPECT_EQ(use(12).restarts, 1) << "the last attempt continued from a later snapshot";
}

// A run that needs more memory than there is ends with 1, so that no job script starts it again. One that lasts until it has
// saved, as with a slow leak, may go on.
TEST(RestartBudget, StartsOnceAfterMemoryWasUsedUp) {
  RestartBudget budget({.restarts = 5, .per_hour = 0});
  const auto ends = [&](std::int64_t saved_step) {
    return budget.judge({.code = kKilled, .cause = Cause::memory, .saved_step = saved_step});
  };
  EXPECT_TRUE(ends(0).restarts);
  EXPECT_TRUE(ends(10).restarts);
  const RestartBudget::Decision last = ends(10);
  EXPECT_FALSE(last.restarts);
  EXPECT_EQ(last.code, 1);
  EXPECT_EQ(last.why, "memory was used up again after a restart");
}

// A run that has fitted once may fit again, when another program has given the memory back.
TEST(RestartBudget, StartsAgainAfterARunThatHasFittedDoesNotFit) {
  RestartBudget budget({.restarts = 3, .per_hour = 0});
  const auto ends = [&](bool trained) { return budget.judge({.code = 3, .trained = trained}); };
  EXPECT_FALSE(ends(false).restarts);
  for (const double wait_s : {0.0, 5.0, 20.0}) {
    const RestartBudget::Decision decision = ends(true);
    EXPECT_TRUE(decision.restarts);
    EXPECT_EQ(decision.wait_s, wait_s);
  }
  EXPECT_FALSE(ends(true).restarts);
  EXPECT_EQ(ends(true).code, 3);
}

// Another coordinator has ordered restarts before this one.
TEST(RestartBudget, CountsRestartsThatOthersHaveOrdered) {
  const auto earlier = [](RestartBudget& budget, double at_s, std::int64_t saved_step) {
    budget.count({.code = kKilled, .saved_step = saved_step, .at_s = at_s});
  };
  RestartBudget budget({.restarts = 3, .per_hour = 0});
  earlier(budget, 0, 0);
  earlier(budget, 1, 0);
  const RestartBudget::Decision third = after(budget, 2, 0);
  EXPECT_TRUE(third.restarts);
  EXPECT_EQ(third.wait_s, 20);
  EXPECT_FALSE(after(budget, 3, 0).restarts);
  RestartBudget saved({.restarts = 2, .per_hour = 0});
  earlier(saved, 0, 0);
  earlier(saved, 1, 5);
  EXPECT_TRUE(after(saved, 2, 5).restarts) << "a checkpoint clears the count";
  RestartBudget hourly({.restarts = 9, .per_hour = 2});
  earlier(hourly, -3599, 0);
  earlier(hourly, -10, 0);
  EXPECT_FALSE(after(hourly, 0, 0).restarts);
  EXPECT_TRUE(after(hourly, 1, 0).restarts);
}

// The general limits hold for every cause.
TEST(RestartBudget, StorageAndMemoryCountAmongAllRestarts) {
  RestartBudget budget({.restarts = 2, .per_hour = 0});
  EXPECT_TRUE(after(budget, 0, 0).restarts);
  EXPECT_TRUE(budget.judge({.code = kKilled, .cause = Cause::memory}).restarts);
  const RestartBudget::Decision decision = budget.judge({.code = kData, .cause = Cause::storage});
  EXPECT_FALSE(decision.restarts);
  EXPECT_EQ(decision.why, "2 restarts in a row brought no newer checkpoint, and --restarts = 2");
}

TEST(RestartBudget, WaitsLongerEachTimeAndGivesUpWithoutProgress) {
  RestartBudget budget({.restarts = 5, .per_hour = 0});
  for (const double wait_s : {0.0, 5.0, 20.0, 60.0, 60.0}) {
    const RestartBudget::Decision decision = after(budget, 0, 0);
    EXPECT_TRUE(decision.restarts);
    EXPECT_EQ(decision.wait_s, wait_s);
  }
  const RestartBudget::Decision last = after(budget, 0, 0);
  EXPECT_FALSE(last.restarts);
  EXPECT_EQ(last.why, "5 restarts in a row brought no newer checkpoint, and --restarts = 5");
}

TEST(RestartBudget, ANewerCheckpointClearsTheCount) {
  RestartBudget budget({.restarts = 1, .per_hour = 0});
  for (std::int64_t step = 1; step < 50; ++step) {
    const RestartBudget::Decision decision = after(budget, 0, step);
    EXPECT_TRUE(decision.restarts) << step;
    EXPECT_EQ(decision.wait_s, 0) << step;
  }
  EXPECT_FALSE(after(budget, 0, 49).restarts);
  EXPECT_FALSE(after(budget, 0, 48).restarts) << "a rollback is no progress";
  EXPECT_FALSE(after(budget, 0, 49).restarts) << "nor is the way back to where it was";
}

// The hour is a sliding window: of restarts at 0 s and 600 s, the first is forgotten 3,600 s later.
// A snapshot in memory is progress, too, but a checkpoint from which the first attempt went on is not.
TEST(RestartBudget, GoingOnFromALaterStepClearsTheCount) {
  RestartBudget budget({.restarts = 1, .per_hour = 0});
  const auto after_step = [&](std::int64_t from_step) { return budget.judge({.code = kKilled, .from_step = from_step}).restarts; };
  EXPECT_TRUE(after_step(40));
  EXPECT_TRUE(after_step(44));
  EXPECT_TRUE(after_step(45));
  EXPECT_FALSE(after_step(45));
}

TEST(RestartBudget, CountsTheRestartsOfAnHour) {
  RestartBudget budget({.restarts = 3, .per_hour = 2});
  EXPECT_TRUE(after(budget, 0, 1).restarts);
  EXPECT_TRUE(after(budget, 600, 2).restarts);
  const RestartBudget::Decision refused = after(budget, 3599, 3);
  EXPECT_FALSE(refused.restarts);
  EXPECT_EQ(refused.why, "2 restarts in an hour, and --restarts-per-hour = 2");
  EXPECT_TRUE(after(budget, 3600, 4).restarts);
}

TEST(RestartBudget, DoesNotResistARequest) {
  RestartBudget budget({});
  EXPECT_FALSE(budget.judge({.code = kPeer, .asked = true, .saved_step = 1}).restarts);
  EXPECT_EQ(budget.judge({.code = kKilled, .cause = Cause::memory, .asked = true}).code, kKilled);
  EXPECT_TRUE(budget.judge({.code = kPeer, .saved_step = 1}).restarts);
}

TEST(RestartBudget, NoRestartAtAll) {
  RestartBudget budget({.restarts = 0});
  EXPECT_FALSE(after(budget, 0, 0).restarts);
}

}  // namespace
}  // namespace octet::app
