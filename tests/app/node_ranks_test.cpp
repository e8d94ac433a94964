#include "octet/app/node_ranks.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>

#include "octet/base/require.h"
#include "support/folder.h"

namespace octet::app {
namespace {

using octet::testing::TemporaryFolder;

class NodeRanksTest : public ::testing::Test {
 protected:
  // The program of the ranks is that of this process, which lists its tests.
  Order order() const {
    return {.attempt = 3,
            .job = "job",
            .ranks = {.first = 2, .count = 2, .all = 4, .host = "127.0.0.1", .port = 1},
            .command = {"train", "--gtest_list_tests"}};
  }

  TemporaryFolder folder_;
  NodeRanks ranks_{{.run_folder = folder_.path(), .most_ranks = 4, .output = [](auto...) {}, .note = [](auto) {}}};
};

// A signal and an order arrive while this host waits for its terminal. The signal was for this host, whatever the order says.
TEST_F(NodeRanksTest, AHostThatWasAskedToLeaveStartsNoRanks) {
  std::raise(SIGTERM);
  ranks_.turn(-1, 0);
  ASSERT_TRUE(ranks_.asked());
  ranks_.start(order());
  EXPECT_FALSE(ranks_.running());
  const std::optional<NodeEnd> end = ranks_.news();
  ASSERT_TRUE(end);
  EXPECT_EQ(end->attempt, 3);
  EXPECT_EQ(end->code, 75);
  EXPECT_TRUE(end->asked);
  EXPECT_TRUE(end->all);
  EXPECT_FALSE(ranks_.news());
}

// A run folder without run.json may be that below a mount point, but not if Octet itself has renamed a damaged run.json there.
TEST_F(NodeRanksTest, ADamagedFileShowsThatTheRunHasTrainedHere) {
  Order first = order();
  first.trained = true;
  first.ranks.first = 0;
  ranks_.start(first);
  EXPECT_FALSE(ranks_.running());
  const std::optional<NodeEnd> end = ranks_.news();
  ASSERT_TRUE(end);
  EXPECT_EQ(end->code, 76);
  EXPECT_NE(end->what.find("run.json: is gone"), std::string::npos) << end->what;

  folder_.write("run.json.damaged", "");
  ranks_.start(first);
  EXPECT_TRUE(ranks_.running());
}

// The ranks run this program. If the variable is set, they say something before they list its tests.
constexpr const char* kSays = "OCTET_TEST_RANK_SAYS";
[[maybe_unused]] const int said = std::getenv(kSays) ? std::fputs("octet: the end\n", stderr) : 0;

TEST(NodeRanks, PrintASentenceOnceInEachAttempt) {
  const TemporaryFolder folder;
  int printed = 0;
  const auto output = [&](int, StandardStream, std::string_view line) { printed += line == "octet: the end\n"; };
  NodeRanks ranks({.run_folder = folder.path(), .most_ranks = 2, .output = output, .note = [](auto) {}});
  ::setenv(kSays, "1", 1);
  for (int attempt = 1; attempt <= 2; ++attempt) {
    ranks.start({.attempt = attempt,
                 .job = "job",
                 .ranks = {.first = 0, .count = 2, .all = 2, .host = "127.0.0.1", .port = 1},
                 .command = {"train", "--gtest_list_tests"}});
    while (ranks.running()) ranks.turn(-1, 1);
    EXPECT_TRUE(ranks.news());
    EXPECT_EQ(printed, attempt);
  }
  ::unsetenv(kSays);
}

// How many descriptors this process may open is the limit that a test can set. Memory and processes may also run out.
TEST_F(NodeRanksTest, RanksThatCannotBeStartedEndTheAttempt) {
#ifdef OCTET_SANITIZES_UNDEFINED
  GTEST_SKIP() << "UBSan looks at objects through a pipe, for which it needs descriptors";
#endif
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  bool failed = false, started = false;
  for (rlim_t most = 0; most < before.rlim_cur && !started; ++most) {
    const rlimit few{.rlim_cur = most, .rlim_max = before.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
    EXPECT_NO_THROW(ranks_.start(order()));
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
    started = ranks_.running();
    if (started) continue;
    const std::optional<NodeEnd> end = ranks_.news();
    ASSERT_TRUE(end);
    failed = true;
    EXPECT_EQ(end->attempt, 3);
    EXPECT_EQ(end->code, 1);
    EXPECT_TRUE(end->all);
    EXPECT_NE(end->what.find("open files"), std::string::npos) << end->what;
    EXPECT_FALSE(ranks_.news());
  }
  EXPECT_TRUE(failed);
  EXPECT_TRUE(started) << "the next attempt is another one";
}

}  // namespace
}  // namespace octet::app
