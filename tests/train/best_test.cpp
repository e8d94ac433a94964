#include "octet/train/best.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace octet::train {
namespace {

using Steps = std::vector<std::int64_t>;

Best make_best(std::int64_t patience, bool keep_best = true, const std::string& set = "chat") {
  EvaluationConfig config;
  config.keep_best = keep_best;
  config.patience = patience;
  return Best(config, {{"name", set}});
}

bool exists_always(std::int64_t) { return true; }
bool exists_never(std::int64_t) { return false; }

TEST(Best, OnlyALowerFiniteLossIsBest) {
  Best best = make_best(0);
  EXPECT_EQ(best.step(), 0);
  EXPECT_TRUE(std::isnan(best.loss()));
  EXPECT_FALSE(best.observe(5, std::nan("")));
  EXPECT_FALSE(best.observe(6, -std::numeric_limits<double>::infinity()));
  EXPECT_TRUE(best.observe(10, 3.0));
  EXPECT_FALSE(best.observe(20, 3.0)) << "as low as before is not lower";
  EXPECT_FALSE(best.observe(30, 3.5));
  EXPECT_FALSE(best.observe(40, std::nan("")));
  EXPECT_EQ(best.step(), 10);
  EXPECT_EQ(best.waited(), 2) << "a loss that is not finite does not count";
  EXPECT_TRUE(best.observe(50, std::nextafter(3.0, 0)));
  EXPECT_EQ(best.step(), 50);
  EXPECT_EQ(best.waited(), 0);
}

TEST(Best, PatienceCountsEvaluationsSinceTheBest) {
  Best patient = make_best(2), endless = make_best(0);
  for (Best* best : {&patient, &endless}) {
    best->observe(1, 3);
    best->observe(2, 4);
    EXPECT_FALSE(best->is_stale());
    best->observe(3, 2);
    best->observe(4, 4);
    best->observe(5, std::nan(""));
    EXPECT_FALSE(best->is_stale()) << "the rule of ten skipped steps decides";
    best->observe(6, 4);
  }
  EXPECT_TRUE(patient.is_stale());
  EXPECT_FALSE(endless.is_stale());
}

TEST(Best, TellsTheWriterWhatIsBestAndWhatIsOneMore) {
  Best best = make_best(0);
  EXPECT_TRUE(best.checkpoint().steps.empty());
  best.observe(10, 3);
  best.save_extra();
  best.observe(20, 2.5);
  best.observe(25, 2);
  best.save_extra();
  EXPECT_EQ(best.checkpoint().steps, (Steps{25, 20, 10}));
  EXPECT_EQ(best.checkpoint().extra, (Steps{10, 25}));
  // 25 is about to be saved. Until it is there, 20 stays.
  best.forget_deleted([](std::int64_t step) { return step == 20; });
  EXPECT_EQ(best.checkpoint().steps, (Steps{25, 20}));
  EXPECT_EQ(best.checkpoint().extra, (Steps{25}));
  Best kept_by_nobody = make_best(3, false);
  kept_by_nobody.observe(10, 3);
  kept_by_nobody.observe(20, 2);
  EXPECT_TRUE(kept_by_nobody.checkpoint().steps.empty());
  kept_by_nobody.forget_deleted(exists_always);
  EXPECT_EQ(kept_by_nobody.state()["steps"], nlohmann::json({20}));
}

TEST(Best, GoesOnFromItsState) {
  Best before = make_best(3);
  before.observe(10, 0.1 + 0.2);
  before.save_extra();
  before.observe(20, 5);
  Best after = make_best(3);
  EXPECT_EQ(after.restore(nlohmann::json::parse(before.state().dump()), exists_always), "");
  EXPECT_EQ(after.state(), before.state());
  EXPECT_EQ(after.loss(), 0.1 + 0.2);
  EXPECT_EQ(after.waited(), 1);
  EXPECT_FALSE(after.observe(30, 0.1 + 0.2));
}

// The save of the best one failed, so the one before it is the best that can be kept.
TEST(Best, FallsBackToTheLastEvaluationWhoseCheckpointExists) {
  Best before = make_best(3);
  before.observe(10, 3);
  before.observe(20, 2);
  before.observe(30, 4);
  Best after = make_best(3);
  EXPECT_EQ(after.restore(before.state(), [](std::int64_t step) { return step == 10; }), "");
  EXPECT_EQ(after.step(), 10);
  EXPECT_EQ(after.loss(), 3);
  EXPECT_EQ(after.waited(), 1);
}

// What was saved for an evaluation that counts no more is kept as other checkpoints are.
TEST(Best, DeletesNothingWhenItBeginsAnew) {
  Best before = make_best(3);
  before.observe(10, 3);
  before.save_extra();
  Best after = make_best(3, true, "code");
  EXPECT_NE(after.restore(before.state(), exists_always), "");
  EXPECT_TRUE(after.checkpoint().extra.empty());
}

// Losses of other sequences say nothing about the best checkpoint so far. It stays until there is a best one again.
TEST(Best, KeepsTheFormerCheckpointUntilThereIsAnother) {
  Best before = make_best(3);
  before.observe(10, 3);
  Best after = make_best(3, true, "code"), nobody = make_best(3, false, "code");
  after.restore(before.state(), exists_always);
  nobody.restore(before.state(), exists_always);
  EXPECT_EQ(nobody.former(), 0);
  EXPECT_EQ(after.former(), 10);
  EXPECT_EQ(after.checkpoint().steps, (Steps{10}));
  Best again = make_best(3, true, "code"), third = make_best(3, true, "other");
  EXPECT_EQ(again.restore(after.state(), exists_always), "");
  EXPECT_EQ(third.restore(after.state(), exists_always), "");
  EXPECT_EQ(third.former(), 10);
  again.observe(20, 7);
  EXPECT_EQ(again.checkpoint().steps, (Steps{20, 10})) << "20 is about to be saved";
  again.forget_deleted([](std::int64_t step) { return step == 10; });
  EXPECT_EQ(again.former(), 10) << "it was not saved";
  again.forget_deleted(exists_always);
  EXPECT_EQ(again.checkpoint().steps, (Steps{20}));
  EXPECT_EQ(third.restore(after.state(), exists_never), "");
  EXPECT_EQ(third.former(), 0);
}

// Earlier versions counted losses that are not finite.
TEST(Best, WaitsForTheFirstFiniteLoss) {
  Best before = make_best(3);
  before.observe(10, telemetry::kUnknown);
  EXPECT_EQ(before.waited(), 0);
  nlohmann::json state = before.state();
  state["waited"] = 2;
  Best after = make_best(3);
  EXPECT_EQ(after.restore(state, exists_always), "");
  EXPECT_EQ(after.waited(), 0);
}

TEST(Best, BeginsAnewWhereTheOldOneSaysNothing) {
  Best before = make_best(3);
  before.observe(10, 2);
  before.observe(20, 5);
  const std::string begins = "; the next evaluation is the best again";
  Best other = make_best(3, true, "code"), gone = make_best(3), first = make_best(3);
  EXPECT_EQ(other.restore(before.state(), exists_always),
            "the best evaluation, of step 10, was of other held-out sequences" + begins);
  EXPECT_EQ(gone.restore(before.state(), exists_never), "there is no checkpoint of the best evaluation, of step 10" + begins);
  EXPECT_EQ(first.restore(nlohmann::json(), exists_always), "") << "a checkpoint of an earlier version";
  EXPECT_EQ(first.restore(make_best(3).state(), exists_never), "") << "saved before the first evaluation";
  for (Best* best : {&other, &gone, &first}) {
    EXPECT_EQ(best->step(), 0);
    EXPECT_EQ(best->waited(), 0);
    EXPECT_TRUE(best->observe(30, 100));
  }
  // Without keep_best nobody needs the checkpoint.
  Best loss_alone = make_best(3, false);
  EXPECT_EQ(loss_alone.restore(before.state(), exists_never), "");
  EXPECT_EQ(loss_alone.step(), 10);
  EXPECT_EQ(loss_alone.waited(), 1);
}

}  // namespace
}  // namespace octet::train
