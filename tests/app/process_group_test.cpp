// Tests process groups whose ranks are shell scripts: their output, how they end, and that nothing is left of them.
#include "octet/app/process_group.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <stdexcept>
#include <utility>

#include "support/program.h"

namespace octet::app {
namespace {

using octet::testing::TemporaryFolder;
using Clock = std::chrono::steady_clock;

struct Heard {
  int code = -1;
  std::map<std::pair<int, StandardStream>, std::vector<std::string>> lines;
  std::vector<std::string> notes;

  const std::vector<std::string>& out(int rank) { return lines[{rank, StandardStream::out}]; }
  const std::vector<std::string>& err(int rank) { return lines[{rank, StandardStream::err}]; }
  std::int64_t count(const std::string& line) const {
    std::int64_t n = 0;
    for (const auto& [stream, all] : lines) n += std::count(all.begin(), all.end(), line);
    return n;
  }
};

struct Scripts {
  int ranks = 2;
  std::string script;  // all ranks run it; $RANK tells them apart, and they may meet in the folder $DIR
  double grace_s = 20;
  std::function<void(const Heard&)> after_line;
  std::string program = "/bin/sh";
  bool trains = false;
};

Heard run(const Scripts& scripts) {
  const TemporaryFolder folder;
  Heard heard;
  ProcessGroupOptions options{.program = scripts.program, .arguments = {"sh", "-c", scripts.script}, .trains = scripts.trains};
  for (int rank = 0; rank < scripts.ranks; ++rank) {
    options.environment.push_back({"RANK=" + std::to_string(rank), "DIR=" + folder.path().string()});
  }
  options.grace_s = scripts.grace_s;
  options.output = [&](int rank, StandardStream stream, std::string_view line) {
    heard.lines[{rank, stream}].emplace_back(line);
    if (scripts.after_line) scripts.after_line(heard);
  };
  options.note = [&](std::string_view sentence) { heard.notes.emplace_back(sentence); };
  heard.code = ProcessGroup(std::move(options)).run();
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1) << "a child is left";
  EXPECT_EQ(errno, ECHILD);
  return heard;
}

std::string wait_for(const std::string& file) { return "while [ ! -e $DIR/" + file + " ]; do sleep 0.01; done; "; }

using Lines = std::vector<std::string>;

TEST(ProcessGroup, EveryLineOfEveryRankIsWholeAndInOrder) {
  Heard heard =
      run({.ranks = 8, .script = "i=0; while [ $i -lt 1000 ]; do echo rank $RANK line $i; echo error $i >&2; i=$((i+1)); done"});
  EXPECT_EQ(heard.code, 0);
  EXPECT_EQ(heard.notes, Lines());
  for (int rank = 0; rank < 8; ++rank) {
    ASSERT_EQ(heard.out(rank).size(), 1000u);
    ASSERT_EQ(heard.err(rank).size(), 1000u);
    for (std::size_t i = 0; i < 1000; ++i) {
      ASSERT_EQ(heard.out(rank)[i], "rank " + std::to_string(rank) + " line " + std::to_string(i) + "\n");
      ASSERT_EQ(heard.err(rank)[i], "error " + std::to_string(i) + "\n");
    }
  }
}

TEST(ProcessGroup, LongLinesComeInPartsAndTheLastMayLackItsEnd) {
  Heard heard =
      run({.ranks = 2, .script = "head -c 200000 /dev/zero | tr '\\0' x; echo; printf 'no end'; printf 'nor here' >&2"});
  const std::string part(LineSplitter::kLongest, 'x'), rest(200000 - 3 * part.size(), 'x');
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(heard.out(rank), Lines({part, part, part, rest + "\n", "no end"}));
    EXPECT_EQ(heard.err(rank), Lines({"nor here"}));
  }
}

TEST(ProcessGroup, RanksHaveTheirEnvironmentAndOnlyRankZeroTheStdin) {
  ::setenv("RANK", "inherited", 1);
  ::setenv("OCTET_TEST_INHERITED", "yes", 1);
  Heard heard = run({.ranks = 3, .script = "echo $RANK $OCTET_TEST_INHERITED; readlink /proc/$$/fd/0"});
  ::unsetenv("RANK");
  const std::string mine = std::filesystem::read_symlink("/proc/self/fd/0").string();
  EXPECT_EQ(heard.out(0), Lines({"0 yes\n", mine + "\n"}));
  EXPECT_EQ(heard.out(1), Lines({"1 yes\n", "/dev/null\n"}));
  EXPECT_EQ(heard.out(2), Lines({"2 yes\n", "/dev/null\n"}));
}

TEST(ProcessGroup, TheFirstFailureEndsTheOthers) {
  const Heard code = run({.ranks = 3, .script = "if [ $RANK = 1 ]; then exit 3; fi; exec sleep 100"});
  EXPECT_EQ(code.code, 3);
  EXPECT_EQ(code.notes, Lines({"rank 1 ended with code 3"}));
  const Heard killed = run({.ranks = 3, .script = "if [ $RANK = 2 ]; then kill -9 $$; fi; exec sleep 100"});
  EXPECT_EQ(killed.code, 128 + SIGKILL);
  EXPECT_EQ(killed.notes, Lines({"rank 2 was killed by signal 9 (SIGKILL)"}));
  const Heard missing = run({.script = "", .program = "/nowhere/octet"});
  EXPECT_EQ(missing.code, 127);
  EXPECT_GE(missing.count("cannot run /nowhere/octet\n"), 1);
}

TEST(ProcessGroup, TheLastWordsOfAFailedRankComeBeforeTheSentence) {
  Lines order;
  ProcessGroupOptions options{
      .program = "/bin/sh", .arguments = {"sh", "-c", "echo last words >&2; exit 7"}, .environment = {{}}};
  options.output = [&](int, StandardStream, std::string_view line) { order.emplace_back(line); };
  options.note = [&](std::string_view sentence) { order.emplace_back(sentence); };
  EXPECT_EQ(ProcessGroup(std::move(options)).run(), 7);
  EXPECT_EQ(order, Lines({"last words\n", "rank 0 ended with code 7"}));
}

TEST(ProcessGroup, TheOthersMayEndByThemselvesWithinTheGrace) {
  const Heard heard = run({.script = "if [ $RANK = 1 ]; then " + wait_for("ready") +
                                     "exit 3; fi; trap 'echo saved; exit 0' TERM; : > $DIR/ready; while :; do sleep 0.01; done"});
  EXPECT_EQ(heard.code, 3);
  EXPECT_EQ(heard.count("saved\n"), 1);
}

TEST(ProcessGroup, WhoDoesNotEndWithinTheGraceIsKilled) {
  const auto start = Clock::now();
  const Heard heard = run({.script = "if [ $RANK = 1 ]; then " + wait_for("ready") +
                                     "exit 5; fi; trap '' TERM; : > $DIR/ready; while :; do sleep 0.01; done",
                           .grace_s = 0.2});
  EXPECT_EQ(heard.code, 5);
  EXPECT_EQ(heard.notes, Lines({"rank 1 ended with code 5"}));
  EXPECT_GE(Clock::now() - start, std::chrono::milliseconds(200));
}

TEST(ProcessGroup, BeingPreemptedIsNoFailure) {
  const Lines sentence = {"the run was asked to stop (code 75)"};
  const std::string work = ": > $DIR/$RANK; while :; do sleep 0.01; done";
  // Rank 2 ends first, by itself. The others end by the SIGTERM that follows, whether they catch it or not.
  for (const std::string trap : {"trap 'exit 75' TERM; ", "trap 'exit 0' TERM; ", ""}) {
    const std::string first = "if [ $RANK = 2 ]; then " + wait_for("0") + wait_for("1") + "exit 75; fi; ";
    const Heard all = run({.ranks = 3, .script = trap + first + work});
    EXPECT_EQ(all.code, 75) << trap;
    EXPECT_EQ(all.notes, sentence) << trap;
  }
  const Heard some = run({.script = "trap 'exit 9' TERM; if [ $RANK = 1 ]; then " + wait_for("0") + "exit 75; fi; " + work});
  EXPECT_EQ(some.code, 75);
  EXPECT_EQ(some.notes, Lines({"rank 0 ended with code 9 after others were asked to stop (code 75)"}));
}

TEST(ProcessGroup, RanksThatWereAskedAreNotAskedAgain) {
  bool sent = false;
  // Rank 0 ends first. Rank 1 goes on for a while and would count a second SIGTERM.
  const std::string script =
      "n=0; trap 'n=$((n+1))' TERM; echo ready; while [ $n = 0 ]; do sleep 0.01; done; if [ $RANK = 0 ]; then exit 75; fi; "
      "i=0; while [ $i -lt 20 ]; do sleep 0.01; i=$((i+1)); done; echo asked $n; exit 75";
  const Heard heard = run({.script = script, .after_line = [&](const Heard& now) {
                             if (now.count("ready\n") == 2 && !std::exchange(sent, true)) ::kill(::getpid(), SIGTERM);
                           }});
  EXPECT_EQ(heard.code, 75);
  EXPECT_EQ(heard.count("asked 1\n"), 1);
  EXPECT_EQ(heard.notes, Lines({"the run was asked to stop (code 75)"}));
}

TEST(ProcessGroup, ARankThatMissesAPeerWasNotTheFirst) {
  const TemporaryFolder folder;
  const std::string go = (folder / "go").string();
  // Reads no output until both ranks have ended, so that both ends are found at once.
  const auto wait_for_both = [&](const Heard& heard) {
    if (heard.lines.size() < 2 || std::filesystem::exists(go)) return;
    std::ofstream(go).put('\n');
    for (const auto& [stream, lines] : heard.lines) {
      siginfo_t info{};
      ::waitid(P_PID, static_cast<id_t>(std::stol(lines.front())), &info, WEXITED | WNOWAIT);
    }
  };
  const Heard heard =
      run({.script = "echo $$; while [ ! -e " + go + " ]; do sleep 0.01; done; if [ $RANK = 0 ]; then exit 78; fi; kill -9 $$",
           .after_line = wait_for_both});
  EXPECT_EQ(heard.code, 128 + SIGKILL);
  EXPECT_EQ(heard.notes, Lines({"rank 1 was killed by signal 9 (SIGKILL)"}));
}

// Returns a script whose rank 1 ends first with code 78, as if it had lost a peer. Rank 0 does `action` some time after the group
// has noticed that.
std::string after_rank_one(const std::string& action) {
  return "if [ $RANK = 1 ]; then echo $$ > $DIR/new; mv $DIR/new $DIR/pid; " + wait_for("ready") + "exit 78; fi; " +
         wait_for("pid") + ": > $DIR/ready; while kill -0 $(cat $DIR/pid) 2>/dev/null; do sleep 0.01; done; sleep 0.3; " + action;
}

TEST(ProcessGroup, TheMissedPeerMayEndAfterThoseWhoMissIt) {
  const std::map<std::string, std::pair<int, std::string>> ends = {
      {"exit 3", {3, "rank 0 ended with code 3"}},
      {"kill -9 $$", {128 + SIGKILL, "rank 0 was killed by signal 9 (SIGKILL)"}},
      {"kill $$", {128 + SIGTERM, "rank 0 was killed by signal 15 (SIGTERM)"}}};
  for (const auto& [action, end] : ends) {
    const Heard heard = run({.script = after_rank_one(action)});
    EXPECT_EQ(heard.code, end.first) << action;
    EXPECT_EQ(heard.notes, Lines({end.second})) << action;
  }
}

TEST(ProcessGroup, TheMissedPeersEndEndsTheOthers) {
  const Heard heard = run({.ranks = 3, .script = "if [ $RANK = 2 ]; then exec sleep 100; fi; " + after_rank_one("exit 3")});
  EXPECT_EQ(heard.code, 3);
  EXPECT_EQ(heard.notes, Lines({"rank 0 ended with code 3"}));
}

TEST(ProcessGroup, WhereNobodyElseFailsTheFirstThatMissesAPeerIsTold) {
  for (const std::string action : {"exit 78", "exit 75", "exit 0"}) {
    const Heard heard = run({.script = after_rank_one(action)});
    EXPECT_EQ(heard.code, 78) << action;
    EXPECT_EQ(heard.notes, Lines({"rank 1 ended with code 78"})) << action;
  }
  const Heard hangs = run({.script = after_rank_one("exec sleep 100"), .grace_s = 0.5});
  EXPECT_EQ(hangs.code, 78);
  EXPECT_EQ(hangs.notes, Lines({"rank 1 ended with code 78"}));
}

TEST(ProcessGroup, SignalsReachEveryRank) {
  const std::map<std::string, int> signals = {
      {"INT", SIGINT}, {"TERM", SIGTERM}, {"HUP", SIGHUP}, {"USR1", SIGUSR1}, {"USR2", SIGUSR2}};
  for (const auto& [name, signal] : signals) {
    bool sent = false;
    const auto send_once = [&sent, signal = signal](const Heard& now) {
      if (now.count("ready\n") == 3 && !std::exchange(sent, true)) ::kill(::getpid(), signal);
    };
    const std::string script = "trap 'echo got " + name + "; exit 0' " + name + "; echo ready; while :; do sleep 0.01; done";
    const Heard heard = run({.ranks = 3, .script = script, .after_line = send_once});
    EXPECT_EQ(heard.code, 0) << name;
    EXPECT_EQ(heard.count("got " + name + "\n"), 3) << name;
  }
}

// `kill -INT` for all processes of a job sends it to the ranks as well. A second one would end them without saving.
TEST(ProcessGroup, RanksThatTrainGetAnInterruptAsATermination) {
  bool sent = false;
  const auto send_once = [&sent](const Heard& now) {
    if (now.count("ready\n") == 2 && !std::exchange(sent, true)) ::kill(::getpid(), SIGINT);
  };
  const std::string script = "trap 'exit 130' INT; trap 'echo saved; exit 75' TERM; echo ready; while :; do sleep 0.01; done";
  const Heard heard = run({.script = script, .after_line = send_once, .trains = true});
  EXPECT_EQ(heard.code, 75);
  EXPECT_EQ(heard.count("saved\n"), 2);
}

// A rank that is asked to end may not have come to its handlers.
TEST(ProcessGroup, ARankThatIsKilledBeforeItTrainsIsPreempted) {
  for (const bool trains : {false, true}) {
    bool sent = false;
    const auto send_once = [&](const Heard& now) {
      if (now.count("ready\n") == 2 && !std::exchange(sent, true)) ::kill(::getpid(), SIGTERM);
    };
    const Heard heard = run({.script = "echo ready; exec sleep 100", .after_line = send_once, .trains = trains});
    EXPECT_EQ(heard.code, trains ? 75 : 128 + SIGTERM);
    ASSERT_EQ(heard.notes.size(), 1U);
    if (trains) {
      EXPECT_EQ(heard.notes[0], "the run was asked to stop (code 75)");
    } else {  // both ranks get the signal, and either may end first
      EXPECT_TRUE(std::regex_match(heard.notes[0], std::regex(R"(rank [01] was killed by signal 15 \(SIGTERM\))"))) << heard.notes[0];
    }
  }
  EXPECT_EQ(run({.script = "kill $$", .trains = true}).code, 128 + SIGTERM);  // nobody asked
}

TEST(ProcessGroup, WorksWhereSignalsAreIgnoredAndHeldBack) {
  sigset_t all, before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  const auto child_before = ::signal(SIGCHLD, SIG_IGN);
  const auto hang_up_before = ::signal(SIGHUP, SIG_IGN);
  const Heard heard = run({.script = "kill -HUP $$; echo here"});  // SIGHUP is still ignored, as under nohup
  EXPECT_EQ(::signal(SIGHUP, hang_up_before), SIG_IGN);
  EXPECT_EQ(::signal(SIGCHLD, child_before), SIG_IGN);
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  EXPECT_EQ(heard.code, 0);
  EXPECT_EQ(heard.count("here\n"), 2);
}

// A pipe whose reader learns when the last process that inherited the other end has ended.
class Witness {
 public:
  Witness() { EXPECT_EQ(::pipe(ends_.data()), 0); }
  ~Witness() {
    ::close(ends_[0]);
    close_here();
  }
  void close_here() { ::close(std::exchange(ends_[1], -1)); }
  bool all_gone() {
    close_here();
    pollfd end = {.fd = ends_[0], .events = POLLIN, .revents = 0};
    return ::poll(&end, 1, 20'000) == 1 && (end.revents & POLLHUP) != 0;
  }

 private:
  std::array<int, 2> ends_{};
};

// Runs three ranks in a child process, which calls `last` when all ranks are ready. Returns the child's wait status.
int status_of_launcher(Witness& witness, void (*last)()) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    const auto after_line = [&](const Heard& heard) {
      if (heard.count("ready\n") == 3) last();
    };
    run({.ranks = 3, .script = "trap '' INT TERM HUP; echo ready; exec sleep 100", .after_line = after_line});
    ::_exit(0);
  }
  witness.close_here();
  int status = 0;
  ::waitpid(pid, &status, 0);
  return status;
}

TEST(ProcessGroup, RanksDieWithAKilledLauncher) {
  Witness witness;
  const int status = status_of_launcher(witness, [] { ::kill(::getpid(), SIGKILL); });
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
  EXPECT_TRUE(witness.all_gone());
}

TEST(ProcessGroup, ASecondInterruptKillsAtOnce) {
  Witness witness;
  const int status = status_of_launcher(witness, [] {
    ::kill(::getpid(), SIGINT);
    ::kill(::getpid(), SIGINT);
  });
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 130) << status;
  EXPECT_TRUE(witness.all_gone());
}

TEST(ProcessGroup, WhatARankStartedEndsWithIt) {
  Witness witness;
  const Heard heard = run({.script = "sleep 100 & echo started"});
  EXPECT_EQ(heard.code, 0);
  EXPECT_EQ(heard.count("started\n"), 2);
  EXPECT_TRUE(witness.all_gone());
}

// Attaches to a process as a debugger, from a process of its own. While the tracer lives, it alone can see that the other process
// has ended, so a killed process looks to its parent like one that SIGKILL does not end.
class Tracer {
 public:
  explicit Tracer(pid_t traced) {
    std::array<int, 2> ready{};
    if (::pipe(ready.data()) != 0) return;
    pid_ = ::fork();
    if (pid_ == 0) {
      const char attached = ::ptrace(PTRACE_SEIZE, traced, nullptr, nullptr) == 0 ? 1 : 0;
      [[maybe_unused]] const ssize_t written = ::write(ready[1], &attached, 1);
      for (;;) ::pause();
    }
    char attached = 0;
    attached_ = ::read(ready[0], &attached, 1) == 1 && attached == 1;
    for (const int end : ready) ::close(end);
  }
  ~Tracer() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  bool attached() const { return attached_; }

 private:
  pid_t pid_ = -1;
  bool attached_ = false;
};

TEST(ProcessGroup, ARankThatCannotBeKilledIsNotWaitedForForEver) {
  ProcessGroupOptions options{.program = "/bin/sh", .arguments = {"sh", "-c", "exec sleep 100"}, .environment = {{}, {}}};
  options.killed_s = 0.5;
  options.output = [](int, StandardStream, std::string_view) {};
  options.note = [](std::string_view) {};
  pid_t traced = -1, other = -1;
  {
    std::optional<ProcessGroup> group(std::in_place, std::move(options));
    group->start();
    traced = group->pid(0);
    other = group->pid(1);
    const Tracer tracer(traced);
    if (!tracer.attached()) GTEST_SKIP() << "no permission to trace a process";
    const auto start = Clock::now();
    group.reset();
    EXPECT_GE(Clock::now() - start, std::chrono::milliseconds(500));
    EXPECT_LT(Clock::now() - start, std::chrono::seconds(10));
  }
  EXPECT_EQ(::waitpid(other, nullptr, WNOHANG), -1) << "the other rank is not left behind";
  EXPECT_EQ(::waitpid(traced, nullptr, 0), traced);
}

TEST(ProcessGroup, AnExceptionOfTheSinkLeavesNobodyBehind) {
  Witness witness;
  const auto fail = [](const Heard&) { throw std::runtime_error("the sink is full"); };
  EXPECT_THROW(run({.ranks = 3, .script = "echo line; exec sleep 100", .after_line = fail}), std::runtime_error);
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1);
  EXPECT_TRUE(witness.all_gone());
}

}  // namespace
}  // namespace octet::app
