// Ranks that are processes, which are killed or stopped.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <thread>

#include "octet/base/require.h"
#include "octet/comm/rendezvous.h"
#include "octet/comm/socket.h"
#include "support/ranks.h"

namespace octet::comm {
namespace {

using ::octet::testing::run_ranks;

// Passes a number from one process to another.
class Pipe {
 public:
  Pipe() { EXPECT_EQ(::pipe2(ends_, O_CLOEXEC), 0); }
  ~Pipe() {
    ::close(ends_[0]);
    ::close(ends_[1]);
  }
  void tell(int value) const { EXPECT_EQ(::write(ends_[1], &value, sizeof(value)), static_cast<ssize_t>(sizeof(value))); }
  int hear() const {
    int value = 0;
    EXPECT_EQ(::read(ends_[0], &value, sizeof(value)), static_cast<ssize_t>(sizeof(value)));
    return value;
  }

 private:
  int ends_[2] = {-1, -1};
};

// Runs body in a child process. Make it while this process has only one thread. The destructor kills the child.
class Child {
 public:
  explicit Child(const std::function<void()>& body) : pid_(::fork()) {
    if (pid_ != 0) return;
    try {
      body();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "child: %s\n", error.what());
      ::_exit(1);
    }
    ::_exit(0);
  }
  ~Child() {
    if (pid_ <= 0) return;
    signal(SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  void signal(int number) const { ::kill(pid_, number); }
  int wait() {
    int status = -1;
    ::waitpid(std::exchange(pid_, -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

 private:
  pid_t pid_;
};

// Waits for a key that nobody sets. Returns the error message and how long it took to come.
std::pair<std::string, double> wait_in_vain(Rendezvous& rendezvous) {
  const auto begin = Clock::now();
  try {
    rendezvous.get("never");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::peer);
    return {error.what(), std::chrono::duration<double>(Clock::now() - begin).count()};
  }
  return {"no error", 0};
}

// Rank 2 of 3 is a child process. It gets `signal` while ranks 0 and 1 wait.
void lose_rank_2(int signal, double silence_s, double within_s, const std::string& how) {
  const Pipe port;
  const Child child([&] {
    Rendezvous rendezvous({.rank = 2, .size = 3, .port = port.hear(), .silence_s = silence_s});
    rendezvous.barrier("begin");
    while (true) ::pause();
  });
  const Pipe ours;
  run_ranks(2, [&](int rank) {
    Rendezvous::Options options{.rank = rank, .size = 3, .silence_s = silence_s};
    if (rank == 0) {
      options.listening = [&](int number) {
        port.tell(number);
        ours.tell(number);
      };
    } else {
      options.port = ours.hear();
    }
    Rendezvous rendezvous(options);
    rendezvous.barrier("begin");
    if (rank == 0) child.signal(signal);
    const auto [error, seconds] = wait_in_vain(rendezvous);
    EXPECT_EQ(error, "\"never\" was not set: rank 2 " + how);
    EXPECT_LT(seconds, within_s);
    EXPECT_EQ(rendezvous.lost_text(), "rank 2 " + how);
    // Keys that are set can still be read, and further waits end at once.
    rendezvous.set(concat("last words of ", rank), "x");
    EXPECT_EQ(rendezvous.get(concat("last words of ", rank)), "x");
    EXPECT_LT(wait_in_vain(rendezvous).second, 1);
    EXPECT_THROW(rendezvous.barrier("end"), Error);
    // Rank 0 leaves last, because it is the server.
    if (rank == 0)
      ours.hear();
    else
      ours.tell(0);
  });
}

TEST(RendezvousProcess, AKilledRankIsNamedAtOnce) { lose_rank_2(SIGKILL, 10, 2, "closed its connection"); }

TEST(RendezvousProcess, AStoppedRankIsNamedAfterItsSilence) { lose_rank_2(SIGSTOP, 1, 4, "has been silent for 1 s"); }

// Rank 0 of 3 is a child process. It gets `signal` while ranks 1 and 2 wait.
void lose_rank_0(int signal, double silence_s, double within_s, const std::string& how) {
  const Pipe port;
  const Child child([&] {
    Rendezvous rendezvous({.rank = 0, .size = 3, .silence_s = silence_s, .listening = [&](int number) { port.tell(number); }});
    rendezvous.barrier("begin");
    while (true) ::pause();
  });
  const int number = port.hear();
  const Pipe here;
  run_ranks(2, [&](int thread) {
    Rendezvous rendezvous({.rank = thread + 1, .size = 3, .port = number, .silence_s = silence_s});
    rendezvous.barrier("begin");
    // Sends the signal only after both ranks have passed the barrier.
    if (thread == 1) here.tell(1);
    if (thread == 0 && here.hear() == 1) child.signal(signal);
    const auto [error, seconds] = wait_in_vain(rendezvous);
    EXPECT_EQ(error, "\"never\" was not set: rank 0 " + how);
    EXPECT_LT(seconds, within_s);
    EXPECT_EQ(rendezvous.lost_text(), "rank 0 " + how);
    EXPECT_THROW(rendezvous.set("key", "value"), Error);
    EXPECT_THROW(rendezvous.barrier("end"), Error);
  });
}

TEST(RendezvousProcess, AKilledRankZeroIsNamedAtOnce) { lose_rank_0(SIGKILL, 10, 2, "closed its connection"); }

TEST(RendezvousProcess, AStoppedRankZeroIsNamedAfterItsSilence) { lose_rank_0(SIGSTOP, 1, 4, "has been silent for 1 s"); }

TEST(RendezvousProcess, ARankThatDiesBeforeAllAreThereIsNamed) {
  const Pipe port;
  const Child child([&] {
    const int number = port.hear();
    std::thread dying([] {
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      ::_exit(3);
    });
    Rendezvous rendezvous({.rank = 1, .size = 3, .port = number});
  });
  try {
    Rendezvous rendezvous({.size = 3, .listening = [&](int number) { port.tell(number); }});
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "rank 0 cannot join: rank 1 closed its connection before all 3 ranks had joined");
  }
}

TEST(RendezvousProcess, AJobThatWasStoppedAsAWholeGoesOn) {
  const Pipe ready, go;
  Child job([&] {
    const Pipe port;
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < 2; ++rank) {
      ranks.emplace_back([&, rank] {
        Rendezvous::Options options{.rank = rank, .size = 2, .silence_s = 0.5};
        if (rank == 0)
          options.listening = [&](int number) { port.tell(number); };
        else
          options.port = port.hear();
        Rendezvous rendezvous(options);
        rendezvous.barrier("begin");
        if (rank == 0) ready.tell(1);
        if (rank == 0) go.hear();
        rendezvous.barrier("after");
        demand(rendezvous.lost_text().empty(), ExitCode::peer, "lost ", rendezvous.lost_text());
      });
    }
    for (std::thread& rank : ranks) rank.join();
  });
  ready.hear();
  job.signal(SIGSTOP);
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  job.signal(SIGCONT);
  go.tell(1);
  EXPECT_EQ(job.wait(), 0);
}

}  // namespace
}  // namespace octet::comm
