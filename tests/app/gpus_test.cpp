#include "octet/app/gpus.h"

#include <gtest/gtest.h>

#include "octet/base/require.h"
#include "support/errors.h"

namespace octet::app {
namespace {

std::string refusal(const std::string& gpus, int nodes = 0) {
  return testing::error_of(ExitCode::config, [&] { parse_cluster(gpus, nodes); });
}

TEST(Gpus, AreANumberAnXAndAName) {
  const plan::Cluster cluster = parse_cluster("256xH100", 0);
  EXPECT_EQ(cluster.gpus, 256);
  EXPECT_EQ(cluster.nodes, 32);
  EXPECT_EQ(cluster.per_node(), 8);
  EXPECT_EQ(cluster.gpu.name, "H100");
  EXPECT_LT(cluster.gpu.memory_bytes, 80e9 * 1.1);
  const plan::Cluster one = parse_cluster("1xH200", 0);
  EXPECT_EQ(one.nodes, 1);
  EXPECT_GT(one.gpu.memory_bytes, 1.7 * static_cast<double>(cluster.gpu.memory_bytes));
  EXPECT_GT(one.gpu.machine.copy_bytes_per_s, cluster.gpu.machine.copy_bytes_per_s);
  EXPECT_EQ(parse_cluster("4xH200", 0).nodes, 1);
  EXPECT_EQ(parse_cluster("12xH100", 3).per_node(), 4);
}

TEST(Gpus, NonsenseIsRefusedInASentence) {
  EXPECT_EQ(refusal("8xA100"), "--gpus 8xA100: unknown GPU A100; known are H100, H200");
  EXPECT_EQ(refusal("8xTPU"), "--gpus 8xTPU: unknown GPU TPU; known are H100, H200");
  for (const char* text : {"", "8", "H100", "xH100", "8H100", "-8xH100x", "8 xH100", "1.5xH100", "99999999999xH100"}) {
    EXPECT_NE(refusal(text).find("must be"), std::string::npos) << text << ": " << refusal(text);
  }
  EXPECT_EQ(refusal("eightxH100"), "--gpus eightxH100: must be a number, an x and a GPU, as in 8xH100");
  EXPECT_EQ(refusal("0xH100"), "--gpus 0xH100: must be between 1 and 65536 GPUs");
  EXPECT_EQ(refusal("16xH100", 3), "--gpus 16xH100: --nodes 3: must divide the 16 GPUs");
  EXPECT_EQ(refusal("12xH100"), "--gpus 12xH100: not whole nodes of 8 GPUs; say how many with --nodes");
}

}  // namespace
}  // namespace octet::app
