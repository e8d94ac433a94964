#include "octet/train/meeting.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

namespace octet::train {
namespace {

constexpr const char* kVariable = "NCCL_SOCKET_IFNAME";

// The variable after a run with `interface` has met, if it was `before`; null stands for a variable that is not set.
std::string interface_of_nccl(const std::string& interface, const char* before) {
  ::unsetenv(kVariable);
  if (before) ::setenv(kVariable, before, 1);
  CommConfig config;
  config.interface = interface;
  use_interface_for_nccl(config);
  const char* value = std::getenv(kVariable);
  const std::string text = value ? value : "not set";
  ::unsetenv(kVariable);
  return text;
}

TEST(InterfaceForNccl, IsTheNameAloneUnlessTheUserHasChosen) {
  EXPECT_EQ(interface_of_nccl("eth1", nullptr), "=eth1");
  EXPECT_EQ(interface_of_nccl("eth1", "ib"), "ib");
  EXPECT_EQ(interface_of_nccl("eth1", ""), "");
  EXPECT_EQ(interface_of_nccl("auto", nullptr), "not set");
  EXPECT_EQ(interface_of_nccl("10.0.0.0/8", nullptr), "not set");
}

TEST(VariablesOfNccl, AreSortedAndComplete) {
  const char* const some[] = {"PATH=/bin", "NCCL_IB_DISABLE=1", "XNCCL_A=1", "NCCL_DEBUG=INFO", "NCCL=2", nullptr};
  EXPECT_EQ(variables_of_nccl(some), "NCCL_DEBUG=INFO, NCCL_IB_DISABLE=1");
  EXPECT_EQ(variables_of_nccl(some + 4), "");
}

}  // namespace
}  // namespace octet::train
