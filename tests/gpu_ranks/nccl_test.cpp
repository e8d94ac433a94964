// Tests NCCL between the GPUs of one machine. Ranks are threads of this process.
#include "octet/comm/nccl.h"

#include <atomic>
#include <chrono>

#include "support/group_cases.h"

namespace octet::comm {
namespace {

using octet::testing::errors_of_ranks;
using octet::testing::ThreadStore;

constexpr GroupSize kSizes[] = {
    {DeviceKind::cuda, 1}, {DeviceKind::cuda, 2}, {DeviceKind::cuda, 3}, {DeviceKind::cuda, 4}, {DeviceKind::cuda, 8}};
INSTANTIATE_TEST_SUITE_P(Nccl, GroupCases, ::testing::ValuesIn(kSizes), name_of_size);

// A group of all GPUs of this machine.
class NcclGroup : public ::testing::Test {
 protected:
  void SetUp() override {
    if (size_ < 2) GTEST_SKIP() << "needs 2 GPUs; this machine has " << size_;
  }
  GroupRank make_rank(int rank, double timeout_s, std::function<std::string()> lost = {}) {
    return GroupRank(store_, {.kind = DeviceKind::cuda,
                              .rank = rank,
                              .size = size_,
                              .timeout_s = timeout_s,
                              .blame = [] { return "step 7"; },
                              .lost = std::move(lost)});
  }
  // Sums x over all ranks and waits for the result.
  static void sum(GroupRank& at, const Tensor& x) {
    at.group->all_reduce(*at.stream, at.scratch, {.x = x});
    at.stream->synchronize();
    at.group->check();
  }
  void expect_begins(const std::string& error, const std::string& beginning) {
    EXPECT_EQ(error.rfind(beginning, 0), 0u) << error;
  }
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count(); }

  const int size_ = cuda_device_count();
  ThreadStore store_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

double one(std::int64_t) { return 1; }

TEST_F(NcclGroup, ARankThatDoesNotJoinEndsTheOthersAtTheTimeout) {
  const std::vector<std::string> errors = errors_of_ranks(size_, [&](int r) {
    if (r != 1) make_rank(r, 3);
  });
  for (int r = 0; r < size_; ++r) {
    const std::string& error = errors[static_cast<std::size_t>(r)];
    if (r == 1) {
      EXPECT_EQ(error, "");
    } else {
      expect_begins(error, concat("rank ", r, ": connecting of group test failed: step 7; the other ranks have not arrived"));
    }
  }
  EXPECT_LT(seconds(), 30);
}

TEST_F(NcclGroup, ARankThatIsLostEndsTheOthersInTheMiddle) {
  std::atomic<bool> gone = false;
  const auto lost = [&] { return std::string(gone ? "rank 1 closed its connection" : ""); };
  const std::vector<std::string> errors = errors_of_ranks(size_, [&](int r) {
    GroupRank at = make_rank(r, 100, lost);
    const Tensor x = at.tensor<float>(1000000, one);
    sum(at, x);
    if (r == 1) {
      store_.get("rank 0 waits");
      gone = true;
      throw std::runtime_error("rank 1 fails");
    }
    at.group->all_reduce(*at.stream, at.scratch, {.x = x});
    if (r == 0) store_.set("rank 0 waits", "");
    at.stream->synchronize();
    try {
      at.group->check();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::peer);
      throw;
    }
  });
  for (int r = 0; r < size_; ++r) {
    const std::string& error = errors[static_cast<std::size_t>(r)];
    if (r == 1) {
      EXPECT_EQ(error, "rank 1 fails");
    } else {
      EXPECT_EQ(error, concat("rank ", r, ": all_reduce of group test failed: step 7; rank 1 closed its connection"));
    }
  }
  EXPECT_LT(seconds(), 50);
}

TEST_F(NcclGroup, ALossBetweenOperationsIsToldByTheNextOne) {
  std::atomic<bool> gone = false;
  std::atomic<int> idle = 0;
  const auto lost = [&] { return std::string(gone ? "rank 1 has been silent for 10 s" : ""); };
  const std::vector<std::string> errors = errors_of_ranks(size_, [&](int r) {
    GroupRank at = make_rank(r, 100, lost);
    const Tensor x = at.tensor<float>(100, one);
    sum(at, x);
    if (++idle == size_) gone = true;
    std::this_thread::sleep_for(std::chrono::seconds(1));
    {
      const Batch batch(*at.group, *at.stream);
      at.group->broadcast(*at.stream, {.x = x});
    }
    at.group->all_reduce(*at.stream, at.scratch, {.x = x});
  });
  for (int r = 0; r < size_; ++r) {
    EXPECT_EQ(errors[static_cast<std::size_t>(r)],
              concat("rank ", r, ": all_reduce of group test failed: step 7; rank 1 has been silent for 10 s"));
  }
}

TEST_F(NcclGroup, ARankThatHangsEndsTheOthersAtTheTimeout) {
  const std::vector<std::string> errors = errors_of_ranks(size_, [&](int r) {
    GroupRank at = make_rank(r, r == 1 ? 60 : 10);
    const Tensor x = at.tensor<float>(1000000, one);
    sum(at, x);
    if (r == 1) {
      store_.get("the others have given up");
      return;
    }
    try {
      sum(at, x);
    } catch (const Error&) {
      if (r == 0) store_.set("the others have given up", "");
      throw;
    }
  });
  for (int r = 0; r < size_; ++r) {
    const std::string& error = errors[static_cast<std::size_t>(r)];
    if (r == 1) {
      EXPECT_EQ(error, "");
    } else {
      EXPECT_EQ(error, concat("rank ", r, ": all_reduce of group test failed: step 7; it has not ended within 10 s"));
    }
  }
  EXPECT_LT(seconds(), 100);
}

TEST_F(NcclGroup, RefusesMaximaOfOtherDtypesThanF32) {
  const std::vector<std::string> errors = errors_of_ranks(size_, [&](int r) {
    GroupRank at = make_rank(r, 30);
    at.group->all_reduce(*at.stream, at.scratch, {.x = at.tensor<double>(3, one), .reduction = Reduction::max});
  });
  for (const std::string& error : errors) EXPECT_NE(error.find("max reduces F32 only, not F64"), std::string::npos) << error;
}

TEST(CudaDevices, RefusesAnIndexWithoutAGpu) {
  const int count = cuda_device_count();
  if (count == 0) GTEST_SKIP() << "needs a GPU";
  for (const int index : {-1, count}) {
    try {
      make_device(DeviceKind::cuda, index);
      ADD_FAILURE() << index;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::config);
      EXPECT_EQ(std::string(error.what()),
                concat("run.device = \"cuda\": there is no GPU ", index, ": this machine has ", count, ", counted from 0"));
    }
  }
}

}  // namespace
}  // namespace octet::comm
