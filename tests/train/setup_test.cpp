#include "octet/train/setup.h"

#include <gtest/gtest.h>

#include "octet/recipes/registry.h"
#include "octet/train/world.h"
#include "support/errors.h"
#include "support/tiny_model.h"

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

// A CPU computes with every recipe, and with those in FP8 without instructions for them.
TEST(Setup, ARecipeIsCalledEmulatedWhereTheDeviceLacksItsInstructions) {
  for (const std::string name : {"fp8_delayed", "fp8_rowwise", "fp8_block", "mxfp8"})
    EXPECT_EQ(recipe_text(recipes::make_recipe(name, {}), DeviceKind::cpu), name + ", emulated");
  for (const std::string name : {"fp32", "bf16"}) EXPECT_EQ(recipe_text(recipes::make_recipe(name, {}), DeviceKind::cpu), name);
}

TEST(Setup, BiasesOfRoutersAreRefusedBesideAdapters) {
  Config config;
  config.lora.emplace();
  EXPECT_NO_THROW(adapters_of(config));
  config.model.router_bias_update_rate = 0.0;
  const std::string message = testing::error_of(ExitCode::config, [&] { adapters_of(config); });
  EXPECT_NE(message.find("model.router_bias_update_rate"), std::string::npos) << message;
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

// On an H200 the head of Llama 3.1 8B takes 4.6 us a token, and a block 1.7 in FP8 and 2.6 in BF16
// (docs/measurements/h200-one-gpu.md).
TEST(Setup, TheHeadCountsAsTheBlocksThatTakeItsTime) {
  const auto head_blocks = [](const std::string& settings) {
    const Config config = parse_config(
        concat("model.config = 'llama3.1-8b'\ntraining.seq_len = 8192\nparallel.pipeline = 4\n", settings), "run.toml");
    return mesh_of(config, 4).stages().head_blocks;
  };
  EXPECT_EQ(head_blocks("precision.recipe = 'fp8_delayed'"), 3);
  EXPECT_EQ(head_blocks("precision.recipe = 'bf16'"), 2);
  EXPECT_EQ(head_blocks("precision.recipe = 'fp8_delayed'\nactivation_checkpoint.mode = 'full'"), 2);
  EXPECT_EQ(head_blocks("precision.recipe = 'fp8_delayed'\nprecision.head = 'recipe'"), 1);
  EXPECT_EQ(head_blocks("parallel.pipeline_head_blocks = 0"), 0);
  EXPECT_EQ(head_blocks("parallel.pipeline_head_blocks = 5"), 5);
}

// Products with a scale for each token are Hopper's.
TEST(Setup, EvaluationHasTokenScalesWhereTheyCanBeMultiplied) {
  Config config = parse_config("[precision]\nrecipe = 'fp8_current'\n", "run.toml");
  EXPECT_TRUE(recipe_of(config, DeviceKind::cpu, 0).token_scales);
  EXPECT_TRUE(recipe_of(config, DeviceKind::cuda, 90).token_scales);
  for (const int other : {89, 100, 120}) EXPECT_FALSE(recipe_of(config, DeviceKind::cuda, other).token_scales) << other;
}

// On every device: what a GPU's products would refuse in the first step is refused before it, by name.
TEST(Setup, BlocksOfTokensThatNoGpuMultipliesAreRefused) {
  const auto of = [](const std::vector<std::string>& overrides) {
    Config config = parse_config("[model]\nconfig = 'llama3.2-1b'\n[precision]\nrecipe = 'fp8_block'\n", "run.toml");
    for (const std::string& o : overrides) apply_override(config, o);
    return engine_options(config, recipe_of(config, DeviceKind::cpu));
  };
  using octet::testing::error_of;
  EXPECT_EQ(error_of(ExitCode::config,
                     [&] {
                       of({"training.seq_len=1021", "training.micro_batch_size=2"});
                     }),
            "run.toml: training.seq_len = 1021: fp8_block multiplies tokens by multiples of 4, but training.micro_batch_size x "
            "training.seq_len is 2 x 1021 = 2042: give --training.seq_len=1024");
  EXPECT_EQ(error_of(ExitCode::config,
                     [&] {
                       of({"training.seq_len=132", "parallel.context=2", "training.micro_batch_size=1"});
                     }),
            "run.toml: training.seq_len = 132: fp8_block multiplies tokens by multiples of 4, but training.micro_batch_size x "
            "training.seq_len / parallel.context is 1 x 132 / 2 = 66: give --training.seq_len=136");
  EXPECT_EQ(error_of(ExitCode::config,
                     [&] {
                       of({"training.seq_len=131071", "training.micro_batch_size=1"});
                     })
                .substr(0, 60),
            "run.toml: training.seq_len = 131071: fp8_block multiplies to");
  EXPECT_EQ(of({"training.seq_len=1021", "training.micro_batch_size=4"}).seq_len, 1021);
  EXPECT_EQ(of({"training.seq_len=1021", "training.micro_batch_size=1", "precision.recipe=fp8_rowwise"}).seq_len, 1021);

  // Without a configuration of a run, as of `octet probe`.
  EngineOptions options = octet::testing::tiny_options("fp8_block");
  options.seq_len = 13;
  options.micro_batch_size = 2;
  EXPECT_EQ(error_of(ExitCode::config, [&] { measure(options, DeviceKind::cuda); }),
            "fp8_block on a GPU: 2 sequences of 13 tokens are 26 on each rank: must be a multiple of 4");
  measure(options, DeviceKind::cpu);
}

}  // namespace
}  // namespace octet::train
