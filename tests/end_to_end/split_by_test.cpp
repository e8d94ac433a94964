// A run keeps holding out the text that it has not been trained on.
#include "support/tiny_run.h"

namespace octet::testing {
namespace {

TEST(SplitBy, AResumedRunHoldsOutTheSameText) {
  const TinyRun run;
  EXPECT_EQ(run.run("train run.toml --training.steps=4 --data.split_by=windows").code, 0);
  EXPECT_TRUE(refused(run.run("train run.toml --training.steps=8"), 2, "its run held out windows",
                      "data.split_by = \"documents\" would hold out text that it was trained on; give --data.split_by=windows"));
  EXPECT_TRUE(refused(run.run("eval run.toml --checkpoint out/checkpoints/step-00000004"), 2, "its run held out windows"));
  EXPECT_EQ(run.run("eval run.toml --checkpoint out/checkpoints/step-00000004 --data.split_by=windows").code, 0);
  EXPECT_EQ(run.run("train run.toml --training.steps=8 --data.split_by=windows").code, 0);
}

}  // namespace
}  // namespace octet::testing
