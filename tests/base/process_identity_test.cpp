#include "octet/base/process_identity.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

namespace octet {
namespace {

// The identity of a child that waits, as the child itself writes it down; it ends with the object.
class Child {
 public:
  Child() {
    int ends[2];
    EXPECT_EQ(::pipe(ends), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      const std::int64_t ticks = ProcessIdentity::mine().start_ticks;
      if (::write(ends[1], &ticks, sizeof ticks) != sizeof ticks) ::_exit(1);
      for (;;) ::pause();
    }
    identity = ProcessIdentity::mine();
    identity.pid = pid_;
    EXPECT_EQ(::read(ends[0], &identity.start_ticks, sizeof identity.start_ticks),
              static_cast<ssize_t>(sizeof identity.start_ticks));
    ::close(ends[0]);
    ::close(ends[1]);
  }
  ~Child() {
    ::kill(pid_, SIGKILL);
    reap();
  }
  void kill_and_leave_unreaped() const {
    ::kill(pid_, SIGKILL);
    siginfo_t info;
    ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOWAIT);
  }
  void reap() const { ::waitpid(pid_, nullptr, 0); }
  ProcessIdentity identity;

 private:
  pid_t pid_ = -1;
};

TEST(ProcessIdentity, KnowsWhoRuns) {
  EXPECT_EQ(fate_of(ProcessIdentity::mine()), Fate::runs);
  const Child child;
  EXPECT_EQ(fate_of(child.identity), Fate::runs);
  EXPECT_NE(child.identity, ProcessIdentity::mine());
  child.kill_and_leave_unreaped();
  EXPECT_EQ(fate_of(child.identity), Fate::ended) << "nobody has asked for its exit code yet";
  child.reap();
  EXPECT_EQ(fate_of(child.identity), Fate::ended);
}

TEST(ProcessIdentity, AnotherProcessOfTheSameNumberIsAnother) {
  ProcessIdentity before = ProcessIdentity::mine();
  ASSERT_GT(before.start_ticks, 0);
  --before.start_ticks;
  EXPECT_EQ(fate_of(before), Fate::ended);
}

TEST(ProcessIdentity, SaysNothingOfWhatItCannotSee) {
  ProcessIdentity container = ProcessIdentity::mine();
  container.pid_namespace = "pid:[1]";
  EXPECT_EQ(fate_of(container), Fate::unknown);
  ProcessIdentity elsewhere = ProcessIdentity::mine();
  elsewhere.boot = "another";
  elsewhere.host = "elsewhere";
  EXPECT_EQ(fate_of(elsewhere), Fate::unknown);
  // Machines may have the same name.
  ProcessIdentity namesake = ProcessIdentity::mine();
  namesake.boot = "another";
  namesake.machine = "another";
  EXPECT_EQ(fate_of(namesake), Fate::unknown);
}

TEST(ProcessIdentity, AMachineThatWasStartedAgainHasEndedEverything) {
  ProcessIdentity before = ProcessIdentity::mine();
  if (before.machine.empty()) GTEST_SKIP() << "no /etc/machine-id";
  before.boot = "another";
  EXPECT_EQ(fate_of(before), Fate::ended);
}

}  // namespace
}  // namespace octet
