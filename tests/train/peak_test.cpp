#include "octet/train/peak.h"

#include <gtest/gtest.h>

namespace octet::train {
namespace {

TEST(Peak, IsKnownOfHoppersModulesAlone) {
  for (const char* name : {"NVIDIA H100 80GB HBM3", "NVIDIA H200", "NVIDIA GH200 480GB"}) {
    ASSERT_TRUE(peak_of(name)) << name;
    EXPECT_EQ(peak_of(name)->bf16_flops, 989e12) << name;
  }
  for (const char* name :
       {"NVIDIA H100 PCIe", "NVIDIA H100 NVL", "NVIDIA H200 NVL", "NVIDIA A100-SXM4-80GB", "NVIDIA B200", "cuda", ""}) {
    EXPECT_FALSE(peak_of(name)) << name;
  }
}

TEST(Peak, MixesByTheShareOfOperations) {
  const Peak peak{.bf16_flops = 1e15, .fp8_flops = 2e15};
  EXPECT_DOUBLE_EQ(peak.mixed_flops(0), 1e15);
  EXPECT_DOUBLE_EQ(peak.mixed_flops(1), 2e15);
  // Eight of 10 operations are in FP8. They take 4 + 2 times as long as one operation in BF16.
  EXPECT_DOUBLE_EQ(peak.mixed_flops(0.8), 1e15 * 10 / 6);
}

}  // namespace
}  // namespace octet::train
