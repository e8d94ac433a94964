#include "octet/telemetry/rank_page.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

namespace octet::telemetry {
namespace {

// What a killed child wrote is there, in its page alone, and can be read through the supervisor's process.
TEST(RankPages, KeepWhatAKilledRankWrote) {
  RankPages pages(3);
  const std::int64_t before = monotonic_ns();
  const pid_t child = ::fork();
  if (child == 0) {
    const std::string variable = pages.variable(1);
    ::setenv("OCTET_PAGE", variable.substr(variable.find('=') + 1).c_str(), 1);
    RankPage& page = own_page();
    page.enter(Phase::joining);
    page.enter(Phase::training);
    page.finish_step(41);
    page.finish_step(42);
    ::kill(::getpid(), SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  const auto seen = RankPages::of(::getpid(), pages.descriptor(), 3);
  ASSERT_TRUE(seen);
  const RankPage& page = seen->page(1);
  EXPECT_EQ(page.phase, Phase::training);
  EXPECT_EQ(page.step, 42);
  EXPECT_GT(page.first_step_ns, page.entered_ns[static_cast<std::size_t>(Phase::joining)]);
  EXPECT_LE(page.first_step_ns, page.changed_ns);
  EXPECT_EQ(page.last_step_ns, page.changed_ns);
  EXPECT_GE(page.entered_ns[static_cast<std::size_t>(Phase::joining)], before);
  EXPECT_EQ(page.entered_ns[static_cast<std::size_t>(Phase::saving)], 0);
  for (const int other : {0, 2}) EXPECT_EQ(seen->page(other).changed_ns, 0);
  pages.clear();
  EXPECT_EQ(page.step, 0);
}

TEST(RankPages, AreNothingWhereTheyCannotBeOpened) {
  RankPages pages(1);
  EXPECT_FALSE(RankPages::of(::getpid(), pages.descriptor(), 2)) << "it has one page";
  EXPECT_FALSE(RankPages::of(::getpid(), 9999, 1));
  EXPECT_FALSE(RankPages::of(0, pages.descriptor(), 1));
}

// A variable that some other program set must not crash a run: it then has a page that nobody sees.
TEST(RankPages, AWrongVariableIsIgnored) {
  for (const char* const value : {"", "x", "1", "1:", "-1:0", "0:-1", "0:0", "9999:0", "1:999999999"}) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::setenv("OCTET_PAGE", value, 1);
      own_page().finish_step(1);
      ::_exit(own_page().step == 1 ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0) << value;
  }
}

// Groups whose names begin alike would share a page, and their counts would say that ranks are behind that are not.
TEST(RankPages, ANameThatDoesNotFitIsRefused) {
  RankPage page;
  EXPECT_EQ(page.group(std::string(GroupPage::kName - 1, 'g')).name_text().size(), GroupPage::kName - 1);
  EXPECT_ANY_THROW(page.group(std::string(GroupPage::kName, 'g')));
  EXPECT_ANY_THROW(page.group(""));
}

TEST(RankPages, EveryPhaseHasAName) {
  std::string all;
  for (int i = 0; i < kPhases; ++i) {
    const std::string name(name_of(static_cast<Phase>(i)));
    EXPECT_FALSE(name.empty());
    EXPECT_EQ(all.find(name), std::string::npos) << name;
    all += name + " ";
  }
  EXPECT_EQ(name_of(static_cast<Phase>(99)), "unknown");
}

}  // namespace
}  // namespace octet::telemetry
