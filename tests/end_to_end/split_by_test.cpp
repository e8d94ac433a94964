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

// Windows of another length would be others, whatever checkpoint.allow permits.
TEST(SplitBy, HeldOutWindowsKeepTheirLength) {
  const TinyRun run;
  const std::string windows = "train run.toml --data.split_by=windows ";
  EXPECT_EQ(run.run(windows + "--training.steps=4").code, 0);
  EXPECT_TRUE(refused(run.run(windows + "--training.steps=8 --training.seq_len=64 --checkpoint.allow=seq_len"), 2,
                      "corpus: windows of this corpus are held out, not documents. With seq_len 64 in the place of 32 the run would "
                      "hold out text that it was trained on"));
  EXPECT_EQ(run.run(windows + "--training.steps=8 --run.seed=5 --checkpoint.allow=seed").code, 0);
}

}  // namespace
}  // namespace octet::testing
