#include "octet/train/setup.h"

#include <gtest/gtest.h>

#include "octet/train/world.h"

namespace octet::train {
namespace {

using Choices = std::vector<std::pair<std::string, std::string>>;

Choices choices(const std::string& reshard, const std::string& gradients, std::int64_t ranks, std::int64_t micro_batches = 2) {
  Config config;
  config.training.micro_batch_size = 1;
  config.training.global_batch_size = ranks * micro_batches;
  config.parallel.reshard_after_forward = reshard;
  config.parallel.gradients = gradients;
  Choices result;
  for (const Config& layout : layouts_allowed(config, mesh_of(config, static_cast<int>(ranks)))) {
    result.emplace_back(layout.parallel.reshard_after_forward, layout.parallel.gradients);
  }
  return result;
}

TEST(Setup, LayoutsAreThoseAllowedFromTheOneThatKeepsMost) {
  EXPECT_EQ(choices("auto", "auto", 4),
            Choices({{"false", "whole"}, {"false", "sharded"}, {"true", "sharded"}, {"true", "whole"}}));
  EXPECT_EQ(choices("true", "auto", 4), Choices({{"true", "sharded"}, {"true", "whole"}}));
  EXPECT_EQ(choices("auto", "sharded", 4), Choices({{"false", "sharded"}, {"true", "sharded"}}));
  EXPECT_EQ(choices("true", "whole", 4), Choices({{"true", "whole"}}));
}

TEST(Setup, OneMicroBatchGainsNothingByWholeGradients) {
  EXPECT_EQ(choices("auto", "auto", 4, 1),
            Choices({{"false", "sharded"}, {"true", "sharded"}, {"false", "whole"}, {"true", "whole"}}));
  EXPECT_EQ(choices("auto", "whole", 4, 1), Choices({{"false", "whole"}, {"true", "whole"}}));
}

TEST(Setup, LayoutsDifferInNothingOnOneRank) {
  EXPECT_EQ(choices("auto", "auto", 1), Choices({{"false", "whole"}}));
  EXPECT_EQ(choices("auto", "auto", 1, 1), Choices({{"false", "whole"}}));
  EXPECT_EQ(choices("auto", "sharded", 1), Choices({{"false", "sharded"}}));
}

}  // namespace
}  // namespace octet::train
