#include "octet/comm/rendezvous.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <thread>

#include "comm/meeting_point.h"
#include "octet/base/require.h"
#include "octet/comm/connection.h"

namespace octet::comm {
namespace {

void meet(int size, const std::function<void(Rendezvous&)>& body) {
  Port port;
  run_ranks(size, [&](int rank) {
    Rendezvous rendezvous(port.options(rank, size));
    body(rendezvous);
    rendezvous.barrier("end");
  });
}

TEST(Rendezvous, OneRankAlone) {
  Rendezvous rendezvous({});
  EXPECT_GT(rendezvous.port(), 0);
  rendezvous.set("key", "value");
  EXPECT_EQ(rendezvous.get("key"), "value");
  rendezvous.barrier("all");
  rendezvous.agree("version", "1");
  EXPECT_EQ(rendezvous.lost_text(), "");
  EXPECT_EQ(rendezvous.lost_text(), "");
}

TEST(Rendezvous, EveryRankSeesWhatEveryOtherSets) {
  for (const int size : {2, 3, 8}) {
    meet(size, [&](Rendezvous& rendezvous) {
      EXPECT_EQ(rendezvous.size(), size);
      rendezvous.set(concat("of ", rendezvous.rank()), concat("value ", rendezvous.rank()));
      for (int rank = 0; rank < size; ++rank) EXPECT_EQ(rendezvous.get(concat("of ", rank)), concat("value ", rank));
    });
  }
}

TEST(Rendezvous, GetWaitsForSet) {
  std::atomic<bool> set = false;
  meet(2, [&](Rendezvous& rendezvous) {
    if (rendezvous.rank() == 0) {
      EXPECT_EQ(rendezvous.get("late"), "value");
      EXPECT_TRUE(set);
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      set = true;
      rendezvous.set("late", "value");
    }
  });
}

TEST(Rendezvous, ValuesAreBytesOfAnyLength) {
  std::string value(std::size_t{5} << 20, '\0');
  for (std::size_t i = 0; i < value.size(); ++i) value[i] = static_cast<char>(i * 7 + i / 1000);
  meet(3, [&](Rendezvous& rendezvous) {
    if (rendezvous.rank() == 1) rendezvous.set("large", value);
    if (rendezvous.rank() == 1) rendezvous.set(std::string(kMaxKey, 'k'), "");
    EXPECT_TRUE(rendezvous.get("large") == value);
    EXPECT_EQ(rendezvous.get(std::string(kMaxKey, 'k')), "");
    EXPECT_THROW(rendezvous.get(std::string(kMaxKey + 1, 'k')), Error);
  });
}

TEST(Rendezvous, ThreadsOfOneRankAskAtOnce) {
  meet(2, [&](Rendezvous& rendezvous) {
    run_ranks(8, [&](int thread) {
      const int other = 1 - rendezvous.rank();
      for (int i = 0; i < 50; ++i) {
        rendezvous.set(concat(rendezvous.rank(), "/", thread, "/", i), concat(i));
        EXPECT_EQ(rendezvous.get(concat(other, "/", thread, "/", i)), concat(i));
      }
    });
  });
}

TEST(Rendezvous, AKeyThatNobodySetsIsNamed) {
  Rendezvous rendezvous({.timeout_s = 0.2});
  EXPECT_EQ(peer_error_of([&] { rendezvous.get("address of 3"); }), "\"address of 3\" was not set within 0.2 s");
}

TEST(Rendezvous, NobodyPassesABarrierBeforeAllHaveCome) {
  std::atomic<int> come = 0;
  meet(4, [&](Rendezvous& rendezvous) {
    for (int turn = 1; turn <= 20; ++turn) {
      ++come;
      rendezvous.barrier("the same name");
      EXPECT_GE(come, 4 * turn);
    }
  });
}

TEST(Rendezvous, WhoeverMissesABarrierIsNamed) {
  Port port;
  std::promise<void> tried;
  const auto after = tried.get_future().share();
  run_ranks(3, [&](int rank) {
    Rendezvous rendezvous(port.options(rank, 3, 1));
    if (rank == 2) return after.wait();
    EXPECT_EQ(peer_error_of([&] { rendezvous.barrier("step 7"); }), "barrier \"step 7\": rank 2 has not arrived within 1 s");
    if (rank == 0) tried.set_value();
  });
}

TEST(Rendezvous, WhoeverLeavesBeforeABarrierIsNamed) {
  Port port;
  run_ranks(3, [&](int rank) {
    Rendezvous rendezvous(port.options(rank, 3));
    if (rank == 1) return;
    EXPECT_EQ(peer_error_of([&] { rendezvous.barrier("end"); }), "barrier \"end\": rank 1 left before");
    EXPECT_EQ(rendezvous.lost_text(), "");
    // Rank 2 leaves after both ranks have reached the barrier. Rank 0 leaves last.
    if (rank == 0)
      rendezvous.set("0", "");
    else
      rendezvous.get("0");
    if (rank == 2)
      rendezvous.set("2", "");
    else
      rendezvous.get("2");
  });
}

TEST(Rendezvous, RanksAgreeOrAreNamed) {
  meet(4, [&](Rendezvous& rendezvous) {
    rendezvous.agree("version", "1.0");
    const bool differs = rendezvous.rank() >= 2;
    EXPECT_EQ(peer_error_of([&] { rendezvous.agree("configuration", differs ? "abc" : "abd"); }),
              R"(agreement on configuration: rank 2 has "abc", rank 0 has "abd")");
    rendezvous.agree("configuration", "abd");
  });
}

TEST(Rendezvous, RankZeroEndsItForAll) {
  Port port;
  run_ranks(3, [&](int rank) {
    Rendezvous rendezvous(port.options(rank, 3));
    rendezvous.barrier("begin");
    if (rank == 0) return;
    EXPECT_EQ(peer_error_of([&] { rendezvous.get("never"); }), "\"never\" was not set: rank 0 has left");
    EXPECT_EQ(peer_error_of([&] { rendezvous.set("key", "value"); }), "rank 0 has left");
    EXPECT_EQ(rendezvous.lost_text(), "");
  });
}

TEST(Rendezvous, ARankThatEndsWithAnErrorIsNamed) {
  for (const int failing : {0, 2}) {
    Port port;
    const std::vector<std::string> errors = errors_of_ranks(3, [&](int rank) {
      Rendezvous rendezvous(port.options(rank, 3));
      rendezvous.barrier("begin");
      demand(rank != failing, ExitCode::data, "no corpus");
      const std::string error = peer_error_of([&] { rendezvous.get("never"); });
      EXPECT_EQ(error, concat("\"never\" was not set: rank ", failing, " ended with an error"));
      EXPECT_EQ(rendezvous.lost_text(), concat("rank ", failing, " ended with an error"));
    });
    EXPECT_EQ(errors[static_cast<std::size_t>(failing)], "no corpus");
  }
}

}  // namespace
}  // namespace octet::comm
