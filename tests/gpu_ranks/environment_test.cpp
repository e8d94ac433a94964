// Sets NCCL's environment for ranks that are threads of one process, which only tests have. With NCCL's default, memory from
// cuMem*, the driver sometimes ends such a process while communicators are destroyed: "double free" in cuMemUnmap, NCCL 2.28.9,
// driver 580.
#include <gtest/gtest.h>

#include <cstdlib>

namespace octet::testing {
namespace {

struct RanksAreThreads : ::testing::Environment {
  void SetUp() override { ::setenv("NCCL_CUMEM_ENABLE", "0", 0); }
};
[[maybe_unused]] const ::testing::Environment* const kEnvironment = ::testing::AddGlobalTestEnvironment(new RanksAreThreads);

}  // namespace
}  // namespace octet::testing
