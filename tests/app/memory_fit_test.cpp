// Tests the refusal of a run on GPUs whose host has too little memory.
#include "octet/app/memory_fit.h"

#include <gtest/gtest.h>

#include "support/errors.h"

namespace octet::app {
namespace {

using testing::error_of;

constexpr std::size_t kGiB = std::size_t{1} << 30;

HostMemory with_left(std::size_t bytes, const std::string& limited_by = "") {
  return {.total_bytes = static_cast<std::int64_t>(4 * bytes),
          .available_bytes = static_cast<std::int64_t>(bytes),
          .limited_by = limited_by,
          .unread = {}};
}

TEST(MemoryFit, NamesTheBytesOfStatesThatHostMemoryCannotHold) {
  EXPECT_NO_THROW(check_host(with_left(8 * kGiB), 8 * kGiB, 0));
  EXPECT_EQ(
      error_of(ExitCode::config, [] { check_host(with_left(7 * kGiB, "/sys/fs/cgroup/job"), 8 * kGiB, 0); }),
      "optimizer.offload = true needs 8.00 GiB of this machine's memory for the optimizer's states, and 7.00 GiB are left by "
      "/sys/fs/cgroup/job; what helps: optimizer.state_dtype = \"bf16\", optimizer.master_weights = false, or fewer ranks a "
      "machine");
}

TEST(MemoryFit, CountsTheSnapshotsOfSaves) {
  EXPECT_NO_THROW(check_host(with_left(8 * kGiB), 5 * kGiB, 3 * kGiB));
  const std::string error = error_of(ExitCode::does_not_fit, [] { check_host(with_left(8 * kGiB), 5 * kGiB, 4 * kGiB); });
  EXPECT_NE(error.find("needs 9.00 GiB of this machine's memory for the optimizer's states and the snapshots of its "
                       "saves, and 8.00 GiB are left; what helps: checkpoint.async = false"),
            std::string::npos)
      << error;
}

TEST(MemoryFit, AMachineThatDoesNotTellRefusesNothing) { EXPECT_NO_THROW(check_host({}, 1000 * kGiB, kGiB)); }

}  // namespace
}  // namespace octet::app
