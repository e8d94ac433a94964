#include "octet/app/lock_watch.h"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <thread>

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
  LockWatch watch(folder_.path());
  put("a", 1);
  watch.look();
  watch.look();
  EXPECT_FALSE(watch.grows());
  put("a", 2);
  watch.look();
  EXPECT_TRUE(watch.grows());
  watch.restart();
  watch.look();
  EXPECT_FALSE(watch.grows());
  put("b", 2);
  watch.look();
  EXPECT_TRUE(watch.grows()) << "another holder";
}

TEST_F(LockWatchTest, ALockThatGoesIsNoSignOfLife) {
  LockWatch watch(folder_.path());
  put("a", 1);
  watch.look();
  std::filesystem::remove(folder_.path() / "run.lock");
  watch.look();
  EXPECT_FALSE(watch.grows());
  put("b", 1);
  watch.look();
  EXPECT_TRUE(watch.grows());
}

TEST_F(LockWatchTest, CountsOnlyTheTimeInWhichItCouldRead) {
  LockWatch watch(folder_.path());
  EXPECT_EQ(watch.still_s(), 0) << "nobody has looked";
  watch.look();
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  EXPECT_GT(watch.still_s(), 0) << "there is no lock";
  EXPECT_TRUE(watch.is_free());
  std::filesystem::create_directory(folder_.path() / "run.lock");
  EXPECT_THROW(watch.look(), Error);
  watch.restart();
  EXPECT_EQ(watch.still_s(), 0);
  EXPECT_FALSE(watch.is_free());
}

}  // namespace
}  // namespace octet::app
