#include "octet/plan/advice.h"

#include <gtest/gtest.h>

namespace octet::plan {
namespace {

// 10 layers with two kinds of linears, and a head.
const std::vector<LinearKind> kKinds = {{.name = "o", .pattern = "model.layers.*.self_attn.o_proj", .layers = 10},
                                        {.name = "down", .pattern = "model.layers.*.mlp.down_proj", .layers = 10},
                                        {.name = "head", .pattern = "lm_head", .layers = 1}};
// In BF16 the products take 10 x 1 + 10 x 4 + 10 = 60 seconds. The other ops of each kind take 0.5 seconds.
const Candidate kBf16 = {.recipe = "bf16",
                         .times = {{1, 0.5}, {4, 0.5}, {10, 0.5}},
                         .fp8_layers = {0, 0, 0},
                         .healthy_layers = {0, 0, 0},
                         .memory_bytes = 3 << 20};

Candidate fp8(const std::string& name, LinearTime o, LinearTime down, std::int64_t heads = 0) {
  return {.recipe = name,
          .times = {o, down, {5, 0.5}},
          .fp8_layers = {10, 10, heads},
          .healthy_layers = {10, 10, heads},
          .memory_bytes = 5 << 20};
}

Candidate with_healthy(Candidate candidate, std::vector<std::int64_t> healthy_layers) {
  candidate.healthy_layers = std::move(healthy_layers);
  return candidate;
}

// A run takes 4 MiB in every FP8 recipe, and 1 MiB more for each pattern that it skips.
Recommendation advised(const std::vector<Candidate>& candidates, const std::vector<std::string>& skip,
                       const std::vector<std::string>& keep) {
  return recommend(kKinds, candidates, skip, keep,
                   [](const std::string&, const std::vector<std::string>& skipped) { return (4 + skipped.size()) << 20; });
}

TEST(Advice, CastsAreWhatStandsBesideBf16) {
  EXPECT_DOUBLE_EQ(casts_seconds({.products_s = 2, .others_s = 0.75}, {.products_s = 4, .others_s = 0.5}), 0.25);
  EXPECT_DOUBLE_EQ(total_seconds({.products_s = 2, .others_s = 0.75}, {.products_s = 4, .others_s = 0.5}), 2.25);
  EXPECT_DOUBLE_EQ(gain_pct(2.5, 4), 60);
  EXPECT_DOUBLE_EQ(gain_pct(5, 4), -20);
}

TEST(Advice, AKindThatLosesIsLeftInBf16) {
  // In FP8 and BF16, o takes 0.5 + 0.7 for casts against 1, and down takes 2 + 0.5 against 4.
  const Outcome outcome = outcome_of(kKinds, fp8("a", {0.5, 1.2}, {2, 1}), kBf16);
  EXPECT_EQ(outcome.slower, (std::vector<std::string>{"model.layers.*.self_attn.o_proj"}));
  EXPECT_EQ(outcome.fp8_linears, 10);
  EXPECT_DOUBLE_EQ(outcome.as_is.seconds, 10 * 1.2 + 10 * 2.5 + 10);
  EXPECT_DOUBLE_EQ(outcome.advised.seconds, 10 * 1 + 10 * 2.5 + 10);
  EXPECT_DOUBLE_EQ(outcome.advised.gain_pct, 100 * (60.0 / 45 - 1));
}

TEST(Advice, LayersKeptForTheirHealthCostTime) {
  const Outcome outcome = outcome_of(kKinds, with_healthy(fp8("a", {0.5, 0.5}, {2, 0.5}), {10, 9, 0}), kBf16);
  EXPECT_EQ(outcome.fp8_linears, 19);
  EXPECT_EQ(outcome.unhealthy, 1);
  EXPECT_DOUBLE_EQ(outcome.as_is.seconds, 5 + 20 + 10);
  EXPECT_DOUBLE_EQ(outcome.advised.seconds, 5 + (18 + 4) + 10);
}

TEST(Advice, TheHeadCountsWhereItIsInFp8) {
  EXPECT_DOUBLE_EQ(outcome_of(kKinds, fp8("a", {0.5, 0.5}, {2, 0.5}, 1), kBf16).as_is.seconds, 5 + 20 + 5);
}

TEST(Advice, RecommendsTheFastest) {
  const Recommendation advice =
      advised({kBf16, fp8("a", {0.5, 0.6}, {2, 1}), fp8("b", {0.5, 0.5}, {2, 0.5})}, {"model.layers.0.*"}, {});
  EXPECT_EQ(advice.recipe, "b");
  EXPECT_EQ(advice.toml, "[precision]\nrecipe = \"b\"\nskip = [\"model.layers.0.*\"]\n");
  // 60 / 35 - 1 is 71.4%.
  EXPECT_EQ(advice.reason,
            "b, because it makes the linears 71.4% faster than bf16, the most of the FP8 recipes, with 2.00 MiB more memory");
}

TEST(Advice, NamesWhatToSkip) {
  const std::vector<std::string> keep = {"model.layers.3.mlp.down_proj", "model.layers.5.self_attn.o_proj"};
  const Recommendation advice = advised({kBf16, with_healthy(fp8("a", {0.5, 1.2}, {2, 0.5}), {9, 9, 0})}, {}, keep);
  EXPECT_EQ(advice.recipe, "a");
  EXPECT_NE(advice.reason.find("with 3.00 MiB more memory;"), std::string::npos) << "of two skipped patterns: " << advice.reason;
  EXPECT_TRUE(advice.reason.ends_with("; 1 stay in BF16 for their health")) << advice.reason;
  // The unhealthy o is also slower in FP8, like all others of its kind.
  EXPECT_EQ(advice.skip, (std::vector<std::string>{"model.layers.*.self_attn.o_proj", "model.layers.3.mlp.down_proj"}));
  EXPECT_EQ(advice.toml,
            "[precision]\nrecipe = \"a\"\nskip = [\"model.layers.*.self_attn.o_proj\", \"model.layers.3.mlp.down_proj\"]\n");

  std::vector<std::string> all;
  for (int layer = 0; layer < 10; ++layer) all.push_back("model.layers." + std::to_string(layer) + ".self_attn.o_proj");
  EXPECT_EQ(advised({kBf16, with_healthy(fp8("a", {0.5, 0.5}, {2, 0.5}), {0, 10, 0})}, {}, all).skip,
            (std::vector<std::string>{"model.layers.*.self_attn.o_proj"}));
}

// precision.skip keeps six of ten layers in BF16, and those are the unhealthy ones.
TEST(Advice, LayersThatAreSkippedAlreadyCountOnce) {
  Candidate skipping = fp8("a", {0.5, 0.5}, {2, 0.5});
  skipping.fp8_layers = skipping.healthy_layers = {10, 4, 0};
  std::vector<std::string> keep;
  for (int layer = 0; layer < 6; ++layer) keep.push_back("model.layers." + std::to_string(layer) + ".mlp.down_proj");
  const Recommendation advice = advised({kBf16, skipping}, keep, keep);
  // 10 x 0.5 for o, 4 x 2 + 6 x 4 for down and 10 for the head: 60 / 47 - 1 is 27.7%.
  EXPECT_TRUE(advice.reason.starts_with("a, because it makes the linears 27.7% faster than bf16")) << advice.reason;
  EXPECT_EQ(advice.reason.find("for their health"), std::string::npos) << advice.reason;
  EXPECT_EQ(advice.skip, keep);
}

TEST(Advice, SaysWhenBf16IsTheFaster) {
  Recommendation advice = advised({kBf16, fp8("a", {0.9, 0.7}, {3.9, 0.7})}, {"x"}, {});
  EXPECT_EQ(advice.recipe, "bf16");
  EXPECT_EQ(advice.toml, "[precision]\nrecipe = \"bf16\"\n");
  EXPECT_NE(advice.reason.find("FP8 makes no linear faster"), std::string::npos) << advice.reason;
  // A gain of 60 / 58 - 1 = 3.4% is not worth it. A gain of 60 / 57 - 1 = 5.3% is.
  advice = advised({kBf16, fp8("a", {1, 0.5}, {3.8, 0.5})}, {}, {});
  EXPECT_EQ(advice.recipe, "bf16");
  EXPECT_NE(advice.reason.find("only 3.4% faster"), std::string::npos) << advice.reason;
  EXPECT_EQ(advised({kBf16, fp8("a", {1, 0.5}, {3.7, 0.5})}, {}, {}).recipe, "a");
  EXPECT_EQ(advised({kBf16}, {}, {}).reason, "bf16, because no FP8 recipe takes this model");
}

}  // namespace
}  // namespace octet::plan
