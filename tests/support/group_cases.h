// Parameterised tests of what all transports of a group have in common. A test program instantiates them for its device. The
// values are small integers, so that every sum is exact in every dtype and order.
#pragma once

#include <cmath>
#include <limits>
#include <stdexcept>

#include "octet/device/cuda/cuda_device.h"
#include "octet/numerics/bfloat16.h"
#include "support/group_rank.h"

namespace octet::comm {

using octet::testing::GroupRank;

struct GroupSize {
  DeviceKind kind = DeviceKind::cpu;
  int ranks = 1;
  bool in_memory = false;  // use a ThreadGroup instead of the group that make_group() returns
};
inline std::string name_of_size(const ::testing::TestParamInfo<GroupSize>& info) {
  return concat(name_of(info.param.kind), info.param.ranks);
}

class GroupCases : public ::testing::TestWithParam<GroupSize> {
 protected:
  void SetUp() override {
    if (GetParam().kind == DeviceKind::cuda && GetParam().ranks > cuda_device_count()) {
      GTEST_SKIP() << "needs " << GetParam().ranks << " GPUs; this machine has " << cuda_device_count();
    }
  }
  // Returns element i of a rank's tensor.
  static double value(int rank, std::int64_t i) { return static_cast<double>((31 * rank + 7 * i + i / 15) % 15 - 7); }
  double sum(std::int64_t i) const {
    double total = 0;
    for (int r = 0; r < GetParam().ranks; ++r) total += value(r, i);
    return total;
  }
  void on_ranks(const std::function<void(GroupRank&)>& body) {
    octet::testing::run_ranks(GetParam().ranks, [&](int r) {
      GroupRank rank(store_, {.kind = GetParam().kind,
                              .rank = r,
                              .size = GetParam().ranks,
                              .meetings = GetParam().in_memory ? &meetings_ : nullptr});
      body(rank);
    });
  }

 private:
  octet::testing::ThreadStore store_;
  octet::testing::ThreadMeetings meetings_;
};

inline double untouched(std::int64_t) { return -100; }

TEST_P(GroupCases, GatherInTheOrderOfRanks) {
  on_ranks([&](GroupRank& at) {
    const int size = at.group->size(), rank = at.group->rank();
    for (const std::int64_t n : {0, 1, 7, 40000}) {
      const ArenaScope scope(at.tensors);
      const auto own = [&](std::int64_t i) { return value(rank, i); };
      const auto all = [&](std::int64_t i) { return value(static_cast<int>(i / n), i % n); };
      const Tensor y = at.tensor<float>(size * n, untouched);
      at.group->all_gather(*at.stream, at.scratch, {.x = at.tensor<float>(n, own), .y = y});
      EXPECT_TRUE(at.holds<float>(y, all)) << n;
      const auto in_place = [&](std::int64_t i) { return i / n == rank ? own(i % n) : untouched(i); };
      const Tensor z = at.tensor<float>(size * n, in_place);
      at.group->all_gather(*at.stream, at.scratch, {.x = z.slice_rows(rank * n, (rank + 1) * n), .y = z});
      EXPECT_TRUE(at.holds<float>(z, all)) << n << " in place";
    }
  });
}

TEST_P(GroupCases, GatherCodesAsBytes) {
  on_ranks([&](GroupRank& at) {
    const int size = at.group->size(), rank = at.group->rank();
    const auto code = [](int r, std::int64_t i) { return static_cast<double>((i + 3 * r) % 256); };  // includes NaN codes
    for (const DType dtype : {DType::f8_e4m3, DType::f8_e5m2, DType::u8}) {
      const Tensor x = at.tensor<std::uint8_t>(
          257, [&](std::int64_t i) { return code(rank, i); }, dtype);
      const Tensor y = at.tensor<std::uint8_t>(
          257 * size, [](std::int64_t) { return 0; }, dtype);
      at.group->all_gather(*at.stream, at.scratch, {.x = x, .y = y});
      EXPECT_TRUE(at.holds<std::uint8_t>(y, [&](std::int64_t i) { return code(static_cast<int>(i / 257), i % 257); }));
    }
  });
}

TEST_P(GroupCases, SumExactly) {
  on_ranks([&](GroupRank& at) {
    const int size = at.group->size(), rank = at.group->rank();
    const auto own = [&](std::int64_t i) { return value(rank, i); };
    const auto check = [&]<class T>(std::int64_t n) {
      const ArenaScope scope(at.tensors);
      const Tensor all = at.tensor<T>(n, own);
      at.group->all_reduce(*at.stream, at.scratch, {.x = all});
      EXPECT_TRUE(at.holds<T>(all, [&](std::int64_t i) { return sum(i); })) << n;
      const Tensor x = at.tensor<T>(size * n, own), y = at.tensor<T>(n, untouched);
      const auto part = [&](std::int64_t i) { return sum(rank * n + i); };
      at.group->reduce_scatter(*at.stream, at.scratch, {.x = x, .y = y});
      EXPECT_TRUE(at.holds<T>(y, part)) << n;
      EXPECT_TRUE(at.holds<T>(x, own)) << n << ": x is only read";
      const Tensor place = x.slice_rows(rank * n, (rank + 1) * n);
      at.group->reduce_scatter(*at.stream, at.scratch, {.x = x, .y = place});
      EXPECT_TRUE(at.holds<T>(place, part)) << n << " in place";
    };
    for (const std::int64_t n : {0, 1, 2, 5, 8, 33333}) {
      check.template operator()<BFloat16>(n);
      check.template operator()<float>(n);
      check.template operator()<double>(n);
    }
  });
}

TEST_P(GroupCases, NanWinsAMaximum) {
  on_ranks([&](GroupRank& at) {
    const int size = at.group->size(), rank = at.group->rank(), last = size - 1;
    const double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
    // Element 0 is NaN on rank 0, element 1 on the last rank. Element 2 is NaN on rank 0 and infinite on the others. The rest are
    // numbers.
    const auto amax = [&](std::int64_t i) {
      return (i == 0 && rank == 0) || (i == 1 && rank == last) || (i == 2 && rank == 0) ? nan
             : i == 2                                                                   ? inf
             : i == 3                                                                   ? 0.0
                                                                                        : rank + 1e-3 * static_cast<double>(i);
    };
    const auto check = [&](const std::vector<double>& y) {
      for (const int i : {0, 1, 2}) EXPECT_TRUE(std::isnan(y[static_cast<std::size_t>(i)])) << i;
      EXPECT_EQ(y[3], 0.0);
      EXPECT_EQ(y[4], static_cast<double>(static_cast<float>(last + 4e-3)));
    };
    const Tensor x = at.tensor<float>(5, amax);
    at.group->all_reduce(*at.stream, at.scratch, {.x = x, .reduction = Reduction::max});
    check(at.values<float>(x));
    const Tensor parts = at.tensor<float>(5 * size, [&](std::int64_t i) { return amax(i % 5); });
    const Tensor y = at.tensor<float>(5, untouched);
    at.group->reduce_scatter(*at.stream, at.scratch, {.x = parts, .y = y, .reduction = Reduction::max});
    check(at.values<float>(y));
  });
}

TEST_P(GroupCases, SendEachItsPart) {
  on_ranks([&](GroupRank& at) {
    const int size = at.group->size(), rank = at.group->rank();
    // Rank s sends (s + 2 r) % 4 elements to rank r. Some ranks therefore get none from some others.
    const auto count = [](int from, int to) -> std::int64_t { return (from + 2 * to) % 4; };
    AllToAll op;
    std::vector<double> expected;
    std::int64_t sent = 0;
    for (int r = 0; r < size; ++r) {
      op.sent.push_back(count(rank, r));
      op.received.push_back(count(r, rank));
      sent += op.sent.back();
      std::int64_t first = 0;
      for (int to = 0; to < rank; ++to) first += count(r, to);
      for (std::int64_t i = 0; i < count(r, rank); ++i) expected.push_back(static_cast<double>(100 * r + first + i));
    }
    const auto own = [&](std::int64_t i) { return 100 * rank + static_cast<double>(i); };
    op.x = at.tensor<float>(sent, own);
    op.y = at.tensor<float>(static_cast<std::int64_t>(expected.size()), untouched);
    at.group->all_to_all(*at.stream, at.scratch, op);
    EXPECT_EQ(at.values<float>(op.y), expected);
    const Tensor x = at.tensor<float>(2 * size, own), equal = at.tensor<float>(2 * size, untouched);
    at.group->all_to_all(*at.stream, at.scratch, {.x = x, .y = equal});
    EXPECT_TRUE(at.holds<float>(equal, [&](std::int64_t i) { return static_cast<double>(100 * (i / 2) + 2 * rank + i % 2); }));
  });
}

TEST_P(GroupCases, BroadcastFromAnyRank) {
  on_ranks([&](GroupRank& at) {
    for (int root = 0; root < at.group->size(); ++root) {
      const Tensor x = at.tensor<float>(9, [&](std::int64_t i) { return 10 * at.group->rank() + static_cast<double>(i); });
      at.group->broadcast(*at.stream, {.x = x, .root = root});
      at.group->barrier(*at.stream);
      EXPECT_TRUE(at.holds<float>(x, [&](std::int64_t i) { return 10 * root + static_cast<double>(i); }));
    }
  });
}

TEST_P(GroupCases, ABatchDoesWhatItsOperationsDo) {
  on_ranks([&](GroupRank& at) {
    const int size = at.group->size(), rank = at.group->rank();
    const auto own = [&](std::int64_t i) { return value(rank, i); };
    for (int round = 0; round < 3; ++round) {
      const ArenaScope scope(at.tensors);
      std::vector<Tensor> parts, wholes;
      for (const std::int64_t n : {3, 1000, 256, 0, 77, 4096}) {
        parts.push_back(at.tensor<float>(n, own));
        wholes.push_back(at.tensor<float>(n * size, untouched));
      }
      const Tensor scattered = at.tensor<BFloat16>(8 * size, own), part = at.tensor<BFloat16>(8, untouched);
      const Tensor reduced = at.tensor<double>(5, own), x = at.tensor<float>(size, own), y = at.tensor<float>(size, untouched);
      {
        const Batch batch(*at.group, *at.stream);
        for (std::size_t i = 0; i < parts.size(); ++i) {
          at.group->all_gather(*at.stream, at.scratch, {.x = parts[i], .y = wholes[i]});
        }
        at.group->reduce_scatter(*at.stream, at.scratch, {.x = scattered, .y = part});
        at.group->all_reduce(*at.stream, at.scratch, {.x = reduced});
        at.group->all_to_all(*at.stream, at.scratch, {.x = x, .y = y});
      }
      for (std::size_t i = 0; i < parts.size(); ++i) {
        const std::int64_t n = parts[i].elements();
        EXPECT_TRUE(at.holds<float>(wholes[i], [&](std::int64_t j) { return value(static_cast<int>(j / n), j % n); })) << n;
      }
      EXPECT_TRUE(at.holds<BFloat16>(part, [&](std::int64_t i) { return sum(8 * rank + i); }));
      EXPECT_TRUE(at.holds<double>(reduced, [&](std::int64_t i) { return sum(i); }));
      EXPECT_TRUE(at.holds<float>(y, [&](std::int64_t i) { return value(static_cast<int>(i), rank); }));
    }
    { const Batch empty(*at.group, *at.stream); }
  });
}

// A stream that measures its waits counts the time of an operation, alone or in a batch. In a group of one rank that time is
// zero.
TEST_P(GroupCases, TheStreamKnowsWhatItWaited) {
  on_ranks([&](GroupRank& at) {
    const Tensor x = at.tensor<float>(1000, [](std::int64_t) { return 1; });
    const auto waited = [&](const std::function<void()>& body) {
      at.stream->start_waits();
      body();
      return at.stream->take_waits().all;
    };
    const auto reduce = [&] { at.group->all_reduce(*at.stream, at.scratch, {.x = x}); };
    const auto batch = [&] {
      const Batch batch(*at.group, *at.stream);
      reduce();
      reduce();
    };
    const bool alone = at.group->size() == 1;
    EXPECT_EQ(waited(reduce) > 0, !alone);
    EXPECT_EQ(waited(batch) > 0, !alone);
    EXPECT_EQ(waited([&] { at.stream->zero(x.data, x.bytes()); }), 0);
  });
}

TEST_P(GroupCases, AnExceptionInABatchLeavesTheGroupWhole) {
  on_ranks([&](GroupRank& at) {
    const Tensor x = at.tensor<float>(4, [](std::int64_t) { return 1; });
    try {
      const Batch batch(*at.group, *at.stream);
      at.group->broadcast(*at.stream, {.x = x});
      throw std::logic_error("on every rank");
    } catch (const std::logic_error&) {
    }
    at.group->all_reduce(*at.stream, at.scratch, {.x = x});
    EXPECT_TRUE(at.holds<float>(x, [&](std::int64_t) { return at.group->size(); }));
  });
}

// Each operation reads what the operation before it wrote on the other stream.
TEST_P(GroupCases, TwoStreamsTakeTurns) {
  on_ranks([&](GroupRank& at) {
    const int size = at.group->size(), rank = at.group->rank();
    constexpr std::int64_t kCount = 50000;
    const Tensor part = at.tensor<float>(kCount, [&](std::int64_t i) { return value(rank, i); });
    const Tensor whole = at.tensor<float>(size * kCount, untouched);
    double expected = 1;
    for (int round = 0; round < 6; ++round) {
      at.group->all_gather(*at.stream, at.scratch, {.x = part, .y = whole});
      at.other_stream->wait(*at.stream->record());
      at.group->reduce_scatter(*at.other_stream, at.scratch, {.x = whole, .y = part});
      at.stream->wait(*at.other_stream->record());
      expected *= size;  // all ranks hold the same elements
    }
    EXPECT_TRUE(at.holds<float>(part, [&](std::int64_t i) { return expected * value(rank, i); }));
  });
}

// The expected traffic is a closed form. The meta device must count the same, although it sends nothing.
TEST_P(GroupCases, CountWhatLeavesARank) {
  const auto traffic_of = [](Group& group, Stream& stream, Arena& tensors, Arena& scratch) {
    const int size = group.size();
    const Tensor part = allocate(tensors, DType::bf16, {24}), whole = allocate(tensors, DType::bf16, {24 * size});
    const Tensor copy = allocate(tensors, DType::bf16, {24 * size});
    group.all_gather(stream, scratch, {.x = part, .y = whole});
    group.reduce_scatter(stream, scratch, {.x = whole, .y = part});
    group.all_reduce(stream, scratch, {.x = whole});
    group.all_to_all(stream, scratch, {.x = whole, .y = copy});
    group.broadcast(stream, {.x = part, .root = size - 1});
    group.barrier(stream);
    return group.traffic();
  };
  const int size = GetParam().ranks;
  const double others = size - 1;
  const auto expect = [&](const Traffic& traffic, int rank) {
    EXPECT_DOUBLE_EQ(traffic.bytes, size == 1 ? 0 : 48 * others * (1 + 1 + 2 + 1 + (rank == size - 1 ? 1 : 0)));
    EXPECT_EQ(traffic.messages, size == 1 ? 0 : 6);
  };
  on_ranks([&](GroupRank& at) { expect(traffic_of(*at.group, *at.stream, at.tensors, at.scratch), at.group->rank()); });
  for (int rank = 0; rank < size; ++rank) {
    const std::unique_ptr<Device> meta = make_meta_device(GetParam().kind);
    const std::unique_ptr<Stream> stream = meta->make_stream();
    Arena tensors(*meta, MemoryCategory::workspace, 1 << 20), scratch(*meta, MemoryCategory::workspace, 1 << 20);
    expect(traffic_of(*make_silent_group("meta", rank, size), *stream, tensors, scratch), rank);
  }
}

}  // namespace octet::comm
