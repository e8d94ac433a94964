#include "octet/comm/group.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <thread>
#include <utility>

#include "octet/base/rng.h"
#include "octet/comm/nccl.h"
#include "octet/numerics/bfloat16.h"
#include "support/group_cases.h"

// TSan does not see the atomics of Debian's Gloo library, so its reports about the library's own buffers may be wrong.
extern "C" const char* __tsan_default_suppressions() { return "race:libgloo.so\nrace:gloo::\n"; }  // NOLINT: TSan's name

namespace octet::comm {
namespace {

using octet::testing::errors_of_ranks;
using octet::testing::run_ranks;
using octet::testing::ThreadStore;

constexpr GroupSize kSizes[] = {{.ranks = 1}, {.ranks = 2}, {.ranks = 3}, {.ranks = 4}, {.ranks = 8}};
INSTANTIATE_TEST_SUITE_P(Gloo, GroupCases, ::testing::ValuesIn(kSizes), name_of_size);
// The groups in memory, which tests of other rooms use instead of Gloo, must pass the same tests.
constexpr GroupSize kInMemory[] = {
    {.ranks = 2, .in_memory = true}, {.ranks = 3, .in_memory = true}, {.ranks = 8, .in_memory = true}};
INSTANTIATE_TEST_SUITE_P(Threads, GroupCases, ::testing::ValuesIn(kInMemory), name_of_size);

class Groups : public ::testing::TestWithParam<int> {
 protected:
  // Returns element i of a rank's operand. Every rank can compute the operands of all ranks.
  static double value(int rank, std::int64_t i) {
    return Rng(3, RngStream::test, static_cast<std::uint32_t>(rank)).normal(static_cast<std::uint64_t>(i));
  }
  void on_ranks(const std::function<void(GroupRank&)>& body) {
    run_ranks(GetParam(), [&](int r) {
      GroupRank rank(store_, {.rank = r, .size = GetParam()});
      body(rank);
    });
  }

  ThreadStore store_;
};

// Adds in the order of ranks in FP32 and rounds once at the end. Another order, or a rounding of each sum to BF16, would give
// other bits.
template <class T>
T reduced(int size, std::int64_t i, Reduction reduction, double (*value)(int, std::int64_t)) {
  float total = static_cast<float>(static_cast<T>(static_cast<float>(value(0, i))));
  for (int r = 1; r < size; ++r) {
    const auto other = static_cast<float>(static_cast<T>(static_cast<float>(value(r, i))));
    total = reduction == Reduction::sum ? total + other : std::fmax(total, other);
  }
  return static_cast<T>(total);
}

TEST_P(Groups, ReduceInTheOrderOfRanks) {
  on_ranks([&](GroupRank& at) {
    const int size = at.group->size(), rank = at.group->rank();
    const auto check = [&]<class T>(std::int64_t n, Reduction reduction) {
      const ArenaScope scope(at.tensors);
      const auto fill = [&](std::int64_t i) { return value(rank, i); };
      const Tensor all = at.tensor<T>(n, fill);
      at.group->all_reduce(*at.stream, at.scratch, {.x = all, .reduction = reduction});
      for (std::int64_t i = 0; i < n; ++i) {
        ASSERT_EQ(static_cast<float>(all.as<T>()[i]), static_cast<float>(reduced<T>(size, i, reduction, value)))
            << i << " of " << n;
      }
      const Tensor x = at.tensor<T>(size * n, fill), y = at.tensor<T>(n, fill);
      at.group->reduce_scatter(*at.stream, at.scratch, {.x = x, .y = y, .reduction = reduction});
      const Tensor own = x.slice_rows(rank * n, (rank + 1) * n);
      at.group->reduce_scatter(*at.stream, at.scratch, {.x = x, .y = own, .reduction = reduction});
      for (std::int64_t i = 0; i < n; ++i) {
        const auto expected = static_cast<float>(reduced<T>(size, rank * n + i, reduction, value));
        ASSERT_EQ(static_cast<float>(y.as<T>()[i]), expected) << i << " of " << n;
        ASSERT_EQ(static_cast<float>(own.as<T>()[i]), expected) << i << " of " << n << " in place";
      }
    };
    for (const Reduction reduction : {Reduction::sum, Reduction::max}) {
      for (const std::int64_t n : {0, 1, 2, 5, 8, 3333}) {
        check.template operator()<float>(n, reduction);
        check.template operator()<BFloat16>(n, reduction);
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Sizes, Groups, ::testing::Values(1, 2, 3, 4, 8));

TEST(Group, ARankThatLeavesEndsTheOthersNotTheProcess) {
  ThreadStore store;
  const std::vector<std::string> errors = errors_of_ranks(3, [&](int r) {
    GroupRank rank(store, {.rank = r, .size = 3, .timeout_s = 20, .blame = [] { return "rank 1 is gone"; }});
    if (r == 1) return;
    const Tensor x = rank.tensor<float>(100, [](std::int64_t) { return 1; });
    rank.group->all_reduce(*rank.stream, rank.scratch, {.x = x});
  });
  for (const int r : {0, 2}) {
    EXPECT_EQ(
        errors[static_cast<std::size_t>(r)].rfind(concat("rank ", r, ": all_reduce of group test failed: rank 1 is gone; "), 0),
        0u)
        << errors[static_cast<std::size_t>(r)];
  }
  EXPECT_EQ(errors[1], "");
}

TEST(Group, NoRankHasItsGroupBeforeAllAreConnected) {
  ThreadStore store;
  std::atomic<int> made = 0;
  run_ranks(3, [&](int r) {
    const auto device = make_device(DeviceKind::cpu);
    bool connecting = true;
    const auto get = [&](const std::string& key) {
      std::string value = store.get(key);
      if (r == 0 && std::exchange(connecting, false)) {
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
        EXPECT_EQ(made, 0);
      }
      return value;
    };
    const auto set = [&](const std::string& key, std::string_view value, int reads) { store.set(key, value, reads); };
    const auto group = make_group(*device, {.name = "test", .rank = r, .size = 3, .set = set, .get = get});
    ++made;
  });
}

// A supervisor must see which group a rank is in before the rank exchanges anything. A group that only counts leaves the page to
// it.
TEST(Group, IsShownFromTheBeginning) {
  const auto is_shown = [] {
    const auto& pages = telemetry::own_page().groups;
    return std::any_of(pages.begin(), pages.end(),
                       [](const auto& page) { return page.name_text() == "test" && page.members != 0; });
  };
  ThreadStore store;
  run_ranks(2, [&](int r) {
    const GroupRank rank(store, {.rank = r, .size = 2});
    EXPECT_TRUE(is_shown());
    make_silent_group("test of ranks 0, 1", r, 2);
    EXPECT_TRUE(is_shown());
    rank.group->barrier(*rank.stream);  // the ranks are threads, and the first that ends clears the page of all
  });
  EXPECT_FALSE(is_shown());
}

TEST(Group, ARankThatHangsEndsTheOthersAtTheTimeout) {
  ThreadStore store;
  const std::vector<std::string> errors = errors_of_ranks(2, [&](int r) {
    GroupRank rank(store, {.rank = r, .size = 2, .timeout_s = 0.3});
    if (r == 1) {
      store.get("rank 0 has given up");
      return;
    }
    const Tensor x = rank.tensor<float>(100, [](std::int64_t) { return 1; });
    try {
      rank.group->all_reduce(*rank.stream, rank.scratch, {.x = x});
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::peer);
      store.set("rank 0 has given up", "");
      throw;
    }
  });
  EXPECT_EQ(errors[0].rfind("rank 0: all_reduce of group test failed: ", 0), 0u) << errors[0];
  EXPECT_EQ(errors[1], "");
}

TEST(Group, ARankThatIsLostEndsTheOthersLongBeforeTheTimeout) {
  ThreadStore store;
  std::atomic<bool> lost = false;
  std::atomic<int> waiting = 2;
  const auto begin = std::chrono::steady_clock::now();
  const std::vector<std::string> errors = errors_of_ranks(3, [&](int r) {
    GroupRank rank(store, {.rank = r,
                           .size = 3,
                           .timeout_s = 300,
                           .blame = [] { return "step 7"; },
                           .lost = [&, r] { return lost && r != 1 ? "rank 1 has been silent for 10 s" : ""; }});
    if (r == 1) {
      store.get("all others have given up");  // stays connected without a word, like a process that was stopped
      return;
    }
    const Tensor x = rank.tensor<float>(100, [](std::int64_t) { return 1; });
    // Rank 0 waits in the operation when rank 1 is lost. Rank 2 calls it only afterwards.
    if (r == 0) lost = true;
    if (r == 2) std::this_thread::sleep_for(std::chrono::seconds(1));
    try {
      rank.group->all_reduce(*rank.stream, rank.scratch, {.x = x});
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::peer);
      if (--waiting == 0) store.set("all others have given up", "");
      throw;
    }
  });
  for (const int r : {0, 2}) {
    EXPECT_EQ(errors[static_cast<std::size_t>(r)],
              concat("rank ", r, ": all_reduce of group test failed: step 7; rank 1 has been silent for 10 s"));
  }
  EXPECT_EQ(errors[1], "");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(60));
}

// Gloo itself does not report the loss to an operation that has already begun to send or to receive.
TEST(Group, ARankThatIsLostInTheMiddleOfAMessageEndsTheOthers) {
  ThreadStore store;
  std::atomic<bool> sending = false, gone = false;
  const auto begin = std::chrono::steady_clock::now();
  const std::vector<std::string> errors = errors_of_ranks(2, [&](int r) {
    // Rank 1 gives up and closes its connections while rank 0 sends. Rank 0 learns of it once rank 1 has given up.
    GroupRank rank(store, {.rank = r, .size = 2, .timeout_s = 300, .lost = [&, r] {
                             return (r == 1 ? sending : gone) ? concat("rank ", 1 - r, " is gone") : "";
                           }});
    const Tensor x = rank.tensor<float>(1 << 21, [](std::int64_t) { return 1; });
    try {
      for (;; sending = true) rank.group->broadcast(*rank.stream, {.x = x, .root = 0});
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::peer);
      gone = true;
      throw;
    }
  });
  for (const int r : {0, 1}) {
    const std::string& error = errors[static_cast<std::size_t>(r)];
    EXPECT_EQ(error.rfind(concat("rank ", r, ": broadcast of group test failed: "), 0), 0u) << error;
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(60));
}

// A rank that nobody calls lost may take as long as it wants.
TEST(Group, ARankThatIsSlowIsWaitedFor) {
  ThreadStore store;
  run_ranks(2, [&](int r) {
    std::atomic<int> asked = 0;
    GroupRank rank(store, {.rank = r, .size = 2, .timeout_s = 300, .lost = [&] {
                             ++asked;
                             return "";
                           }});
    const Tensor x = rank.tensor<float>(100, [](std::int64_t) { return 1; });
    if (r == 1) {
      while (asked < 10) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    rank.group->all_reduce(*rank.stream, rank.scratch, {.x = x});
    EXPECT_TRUE(rank.holds<float>(x, [](std::int64_t) { return 2; }));
  });
}

TEST(Group, RefusesWhatDoesNotFit) {
  ThreadStore store;
  GroupRank at(store, {});
  const auto refused = [&](const std::function<void()>& call) {
    try {
      call();
    } catch (const Error&) {
      return true;
    }
    return false;
  };
  const Tensor three = at.tensor<float>(3, [](std::int64_t) { return 0; }),
               four = at.tensor<float>(4, [](std::int64_t) { return 0; });
  const Tensor bytes = allocate(at.tensors, DType::u8, {3});
  EXPECT_TRUE(refused([&] { at.group->all_gather(*at.stream, at.scratch, {.x = three, .y = four}); }));
  EXPECT_TRUE(refused([&] { at.group->all_gather(*at.stream, at.scratch, {.x = three, .y = bytes}); }));
  EXPECT_TRUE(refused([&] { at.group->reduce_scatter(*at.stream, at.scratch, {.x = bytes, .y = bytes}); }));
  EXPECT_TRUE(refused([&] { at.group->broadcast(*at.stream, {.x = three, .root = 1}); }));
  EXPECT_TRUE(refused([&] { at.group->all_to_all(*at.stream, at.scratch, {.x = three, .y = four}); }));
  EXPECT_TRUE(refused([&] { make_silent_group("x", 2, 2); }));
}

TEST(Group, NcclIsRefusedInASentenceWhereItIsAbsent) {
  if (kCudaBackend) GTEST_SKIP() << "this build has NCCL";
  try {
    make_nccl_group(*make_device(DeviceKind::cpu), {.name = "shard", .size = 2});
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::config);
    EXPECT_EQ(std::string(error.what()), "group shard: this build of octet has no CUDA backend, so no NCCL");
  }
  EXPECT_EQ(nccl_version(), "");
}

}  // namespace
}  // namespace octet::comm
