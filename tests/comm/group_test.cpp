#include "octet/comm/group.h"

#include <cmath>
#include <limits>
#include <thread>

#include "octet/base/rng.h"
#include "octet/comm/gloo.h"
#include "octet/numerics/bfloat16.h"
#include "support/ranks.h"

// Gloo is Debian's build, whose atomics TSan does not see: what it says of the library's own buffers cannot be judged.
extern "C" const char* __tsan_default_suppressions() { return "race:libgloo.so\nrace:gloo::\n"; }  // NOLINT: TSan's name

namespace octet::comm {
namespace {

using octet::testing::errors_of_ranks;
using octet::testing::run_ranks;
using octet::testing::ThreadStore;

// One rank: its device, queue, scratch and group.
struct Rank {
  std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
  std::unique_ptr<Queue> queue = device->make_queue();
  Arena tensors{*device, MemoryCategory::workspace, 1 << 22}, scratch{*device, MemoryCategory::workspace, 1 << 22};
  std::unique_ptr<Group> group;

  Rank(ThreadStore& store, int rank, int size, double timeout_s = 30, std::function<std::string()> blame = {}) {
    group = make_gloo_group({.name = "test",
                             .rank = rank,
                             .size = size,
                             .timeout_s = timeout_s,
                             .set = [&store](const std::string& key, std::string_view value) { store.set(key, value); },
                             .get = [&store](const std::string& key) { return store.get(key); },
                             .blame = std::move(blame)});
  }
  template <class T>
  Tensor tensor(std::int64_t n, const std::function<double(std::int64_t)>& value) {
    const Tensor result = allocate(tensors, kDTypeOf<T>, {n});
    for (std::int64_t i = 0; i < n; ++i) result.as<T>()[i] = static_cast<T>(static_cast<float>(value(i)));
    return result;
  }
};

class Groups : public ::testing::TestWithParam<int> {
 protected:
  // The same on every rank: what each gives.
  static double value(int rank, std::int64_t i) {
    return Rng(3, RngStream::test, static_cast<std::uint32_t>(rank)).normal(static_cast<std::uint64_t>(i));
  }
  void on_ranks(const std::function<void(Rank&)>& body) {
    run_ranks(GetParam(), [&](int r) {
      Rank rank(store_, r, GetParam());
      body(rank);
    });
  }

  ThreadStore store_;
};

TEST_P(Groups, GatherInTheOrderOfRanks) {
  on_ranks([&](Rank& at) {
    const int size = at.group->size();
    for (const std::int64_t n : {0, 1, 7, 40000}) {
      const ArenaScope scope(at.tensors);
      const Tensor y = at.tensor<float>(size * n, [](std::int64_t) { return -1; });
      const Tensor own = y.slice_rows(at.group->rank() * n, (at.group->rank() + 1) * n);
      for (const bool in_place : {false, true}) {
        const Tensor x = in_place ? own : at.tensor<float>(n, [](std::int64_t) { return 0; });
        for (std::int64_t i = 0; i < n; ++i) x.as<float>()[i] = static_cast<float>(value(at.group->rank(), i));
        at.group->all_gather(*at.queue, at.scratch, {.x = x, .y = y});
        for (std::int64_t i = 0; i < size * n; ++i) {
          ASSERT_EQ(y.as<float>()[i], static_cast<float>(value(static_cast<int>(i / n), i % n))) << i;
        }
      }
    }
  });
}

// Sums of three or more BF16 numbers are rounded once, and every order of adding FP32 numbers has bits of its own.
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
  on_ranks([&](Rank& at) {
    const int size = at.group->size(), rank = at.group->rank();
    const auto check = [&]<class T>(std::int64_t n, Reduction reduction) {
      const ArenaScope scope(at.tensors);
      const auto fill = [&](std::int64_t i) { return value(rank, i); };
      const Tensor all = at.tensor<T>(n, fill);
      at.group->all_reduce(*at.queue, at.scratch, {.x = all, .reduction = reduction});
      for (std::int64_t i = 0; i < n; ++i) {
        ASSERT_EQ(static_cast<float>(all.as<T>()[i]), static_cast<float>(reduced<T>(size, i, reduction, value)))
            << i << " of " << n;
      }
      const Tensor x = at.tensor<T>(size * n, fill), y = at.tensor<T>(n, fill);
      at.group->reduce_scatter(*at.queue, at.scratch, {.x = x, .y = y, .reduction = reduction});
      const Tensor own = x.slice_rows(rank * n, (rank + 1) * n);
      at.group->reduce_scatter(*at.queue, at.scratch, {.x = x, .y = own, .reduction = reduction});
      for (std::int64_t i = 0; i < n; ++i) {
        const auto expected = static_cast<float>(reduced<T>(size, rank * n + i, reduction, value));
        ASSERT_EQ(static_cast<float>(y.as<T>()[i]), expected) << i << " of " << n;
        ASSERT_EQ(static_cast<float>(own.as<T>()[i]), expected) << i << " of " << n << " in place";
      }
    };
    for (const Reduction reduction : {Reduction::sum, Reduction::max}) {
      for (const std::int64_t n : {0, 1, 2, 5, 8, 33333}) {
        check.template operator()<float>(n, reduction);
        check.template operator()<BFloat16>(n, reduction);
      }
    }
  });
}

TEST_P(Groups, NanWinsAMaximum) {
  on_ranks([&](Rank& at) {
    const int last = at.group->size() - 1, rank = at.group->rank();
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const Tensor x = at.tensor<float>(3, [&](std::int64_t i) {
      return i == 0 && rank == 0 ? nan : i == 1 && rank == last ? nan : static_cast<float>(rank);
    });
    at.group->all_reduce(*at.queue, at.scratch, {.x = x, .reduction = Reduction::max});
    EXPECT_TRUE(std::isnan(x.as<float>()[0]));
    EXPECT_TRUE(std::isnan(x.as<float>()[1]));
    EXPECT_EQ(x.as<float>()[2], static_cast<float>(last));
  });
}

TEST_P(Groups, SendEachItsPart) {
  on_ranks([&](Rank& at) {
    const int size = at.group->size(), rank = at.group->rank();
    // Rank s sends (s + 2 r) % 4 elements to rank r: some get nothing.
    const auto count = [](int from, int to) -> std::int64_t { return (from + 2 * to) % 4; };
    AllToAll op;
    std::int64_t sent = 0, received = 0;
    for (int r = 0; r < size; ++r) {
      op.sent.push_back(count(rank, r));
      op.received.push_back(count(r, rank));
      sent += op.sent.back();
      received += op.received.back();
    }
    op.x = at.tensor<float>(sent, [&](std::int64_t i) { return 100 * rank + static_cast<double>(i); });
    op.y = at.tensor<float>(received, [](std::int64_t) { return -1; });
    at.group->all_to_all(*at.queue, at.scratch, op);
    const float* y = op.y.as<float>();
    for (int from = 0; from < size; ++from) {
      std::int64_t first = 0;
      for (int to = 0; to < rank; ++to) first += count(from, to);
      for (std::int64_t i = 0; i < count(from, rank); ++i) EXPECT_EQ(*y++, static_cast<float>(100 * from + first + i));
    }
    const Tensor x = at.tensor<float>(2 * size, [&](std::int64_t i) { return 100 * rank + static_cast<double>(i); });
    const Tensor equal = at.tensor<float>(2 * size, [](std::int64_t) { return -1; });
    at.group->all_to_all(*at.queue, at.scratch, {.x = x, .y = equal});
    for (int i = 0; i < 2 * size; ++i) EXPECT_EQ(equal.as<float>()[i], static_cast<float>(100 * (i / 2) + 2 * rank + i % 2));
  });
}

TEST_P(Groups, BroadcastFromAnyRank) {
  on_ranks([&](Rank& at) {
    for (int root = 0; root < at.group->size(); ++root) {
      const Tensor x = at.tensor<float>(9, [&](std::int64_t i) { return 10 * at.group->rank() + static_cast<double>(i); });
      at.group->broadcast(*at.queue, {.x = x, .root = root});
      at.group->barrier(*at.queue);
      for (int i = 0; i < 9; ++i) EXPECT_EQ(x.as<float>()[i], static_cast<float>(10 * root + i));
    }
  });
}

// Closed forms; the meta device counts the same without a transport.
TEST_P(Groups, CountWhatLeavesARank) {
  const auto traffic_of = [](Group& group, Queue& queue, Arena& tensors, Arena& scratch) {
    const int size = group.size();
    const Tensor part = allocate(tensors, DType::bf16, {24}), whole = allocate(tensors, DType::bf16, {24 * size});
    const Tensor copy = allocate(tensors, DType::bf16, {24 * size});
    group.all_gather(queue, scratch, {.x = part, .y = whole});
    group.reduce_scatter(queue, scratch, {.x = whole, .y = part});
    group.all_reduce(queue, scratch, {.x = whole});
    group.all_to_all(queue, scratch, {.x = whole, .y = copy});
    group.broadcast(queue, {.x = part, .root = size - 1});
    group.barrier(queue);
    return group.traffic();
  };
  const int size = GetParam();
  const double others = size - 1;
  const auto expect = [&](const Traffic& traffic, int rank) {
    EXPECT_DOUBLE_EQ(traffic.bytes, size == 1 ? 0 : 48 * others * (1 + 1 + 2 + 1 + (rank == size - 1 ? 1 : 0)));
    EXPECT_EQ(traffic.messages, size == 1 ? 0 : 6);
  };
  on_ranks([&](Rank& at) { expect(traffic_of(*at.group, *at.queue, at.tensors, at.scratch), at.group->rank()); });
  for (int rank = 0; rank < size; ++rank) {
    const std::unique_ptr<Device> meta = make_meta_device(DeviceKind::cpu);
    const std::unique_ptr<Queue> queue = meta->make_queue();
    Arena tensors(*meta, MemoryCategory::workspace, 1 << 20), scratch(*meta, MemoryCategory::workspace, 1 << 20);
    expect(traffic_of(*make_silent_group("meta", rank, size), *queue, tensors, scratch), rank);
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, Groups, ::testing::Values(1, 2, 3, 4, 8));

TEST(Group, ARankThatLeavesEndsTheOthersNotTheProcess) {
  ThreadStore store;
  const std::vector<std::string> errors = errors_of_ranks(3, [&](int r) {
    Rank rank(store, r, 3, 20, [] { return "rank 1 is gone"; });
    if (r == 1) return;
    const Tensor x = rank.tensor<float>(100, [](std::int64_t) { return 1; });
    rank.group->all_reduce(*rank.queue, rank.scratch, {.x = x});
  });
  for (const int r : {0, 2}) {
    EXPECT_EQ(
        errors[static_cast<std::size_t>(r)].rfind(concat("rank ", r, ": all_reduce of group test failed: rank 1 is gone; "), 0),
        0u)
        << errors[static_cast<std::size_t>(r)];
  }
  EXPECT_EQ(errors[1], "");
}

TEST(Group, ARankThatHangsEndsTheOthersAtTheTimeout) {
  ThreadStore store;
  const std::vector<std::string> errors = errors_of_ranks(2, [&](int r) {
    Rank rank(store, r, 2, 0.3);
    if (r == 1) {
      store.get("rank 0 has given up");
      return;
    }
    const Tensor x = rank.tensor<float>(100, [](std::int64_t) { return 1; });
    try {
      rank.group->all_reduce(*rank.queue, rank.scratch, {.x = x});
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::peer);
      store.set("rank 0 has given up", "");
      throw;
    }
  });
  EXPECT_EQ(errors[0].rfind("rank 0: all_reduce of group test failed: ", 0), 0u) << errors[0];
  EXPECT_EQ(errors[1], "");
}

TEST(Group, RefusesWhatDoesNotFit) {
  ThreadStore store;
  Rank at(store, 0, 1);
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
  EXPECT_TRUE(refused([&] { at.group->all_gather(*at.queue, at.scratch, {.x = three, .y = four}); }));
  EXPECT_TRUE(refused([&] { at.group->all_gather(*at.queue, at.scratch, {.x = three, .y = bytes}); }));
  EXPECT_TRUE(refused([&] { at.group->reduce_scatter(*at.queue, at.scratch, {.x = bytes, .y = bytes}); }));
  EXPECT_TRUE(refused([&] { at.group->broadcast(*at.queue, {.x = three, .root = 1}); }));
  EXPECT_TRUE(refused([&] { at.group->all_to_all(*at.queue, at.scratch, {.x = three, .y = four}); }));
  EXPECT_TRUE(refused([&] { make_silent_group("x", 2, 2); }));
}

}  // namespace
}  // namespace octet::comm
