#include "octet/app/lock_watch.h"

#include <gtest/gtest.h>

#include "octet/base/require.h"
#include "support/folder.h"

namespace octet::app {
namespace {

using octet::testing::TemporaryFolder;
using octet::testing::write_text;

class LockWatchTest : public ::testing::Test {
 protected:
  void put(const std::string& run, int counter) const {
    write_text(folder_.path() / "run.lock", concat(R"({"run":")", run, R"(","counter":)", counter, "}\n"));
  }
  const TemporaryFolder folder_;
};

TEST_F(LockWatchTest, SeesTheCounterGrow) {
  LockWatch watch(folder_.path(), 1e6);
  put("a", 1);
  watch.look();
  watch.look();
  EXPECT_EQ(watch.verdict(), LockWatch::Verdict::unknown);
  put("a", 2);
  EXPECT_EQ(watch.verdict(), LockWatch::Verdict::unknown) << "not seen yet";
  watch.look();
  EXPECT_EQ(watch.verdict(), LockWatch::Verdict::grows);
  watch.restart();
  watch.look();
  EXPECT_EQ(watch.verdict(), LockWatch::Verdict::unknown);
  put("b", 2);
  watch.look();
  EXPECT_EQ(watch.verdict(), LockWatch::Verdict::grows) << "another holder";
}

TEST_F(LockWatchTest, ALockThatGoesIsNoSignOfLife) {
  LockWatch watch(folder_.path(), 1e6);
  put("a", 1);
  watch.look();
  std::filesystem::remove(folder_.path() / "run.lock");
  watch.look();
  EXPECT_EQ(watch.verdict(), LockWatch::Verdict::unknown);
  put("b", 1);
  watch.look();
  EXPECT_EQ(watch.verdict(), LockWatch::Verdict::grows);
}

TEST_F(LockWatchTest, StandsStillAfterTheSilence) {
  LockWatch watch(folder_.path(), 0);
  EXPECT_EQ(watch.verdict(), LockWatch::Verdict::unknown) << "nobody has looked";
  watch.look();
  EXPECT_EQ(watch.verdict(), LockWatch::Verdict::stands_still) << "there is no lock";
  put("a", 1);
  watch.look();
  watch.look();
  EXPECT_EQ(watch.verdict(), LockWatch::Verdict::stands_still);
}

TEST_F(LockWatchTest, SeesNothingInAFolderThatCannotBeRead) {
  LockWatch watch(folder_.path(), 0);
  watch.look();
  std::filesystem::create_directory(folder_.path() / "run.lock");
  watch.look();
  EXPECT_EQ(watch.verdict(), LockWatch::Verdict::unknown);
}

}  // namespace
}  // namespace octet::app
