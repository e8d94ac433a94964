#include "octet/recipes/registry.h"

#include <gtest/gtest.h>

#include <limits>
#include <map>

#include "octet/base/require.h"
#include "support/errors.h"

namespace octet::recipes {
namespace {

template <class F>
std::string refusal(F&& f) {
  return testing::error_if_any(ExitCode::config, f);
}
std::string refusal(const std::string& name, const Options& options) {
  return refusal([&] { make_recipe(name, options); });
}

struct Expected {
  const char* name;
  Compute compute;
  ScaleTile x = {}, w = {};
  Fp8Format g = {};
  ScaleSource source = {};
  bool power_of_2 = false;
  Accumulation fprop = Accumulation::precise;
};

// The same table stands in docs/numerics.md.
TEST(Recipes, AreTheTable) {
  const Expected table[] = {
      {"bf16", Compute::bf16},
      {"fp32", Compute::fp32},
      {"fp8_block", Compute::fp8, ScaleTile::block_1x128, ScaleTile::block_128x128, Fp8Format::e4m3, ScaleSource::tensor, true},
      {"fp8_current", Compute::fp8, ScaleTile::tensor, ScaleTile::tensor, Fp8Format::e5m2, ScaleSource::tensor, false,
       Accumulation::fast},
      {"fp8_delayed", Compute::fp8, ScaleTile::tensor, ScaleTile::tensor, Fp8Format::e5m2, ScaleSource::history, false,
       Accumulation::fast},
      {"fp8_rowwise", Compute::fp8, ScaleTile::row, ScaleTile::row, Fp8Format::e4m3, ScaleSource::tensor, false,
       Accumulation::fast},
      {"mxfp8", Compute::fp8, ScaleTile::mx_1x32, ScaleTile::mx_1x32, Fp8Format::e4m3, ScaleSource::tensor, true},
  };
  std::vector<std::string> names;
  for (const Expected& e : table) {
    names.emplace_back(e.name);
    const Recipe r = make_recipe(e.name, {});
    SCOPED_TRACE(e.name);
    EXPECT_EQ(r.name, e.name);
    EXPECT_EQ(r.compute, e.compute);
    EXPECT_EQ(r.is_fp8(), e.compute == Compute::fp8);
    EXPECT_EQ(r.delayed(), std::string(e.name) == "fp8_delayed");
    EXPECT_FALSE(r.wgrad_bf16);
    EXPECT_FALSE(r.head_fp8);
    EXPECT_EQ(r.fprop, e.fprop);
    EXPECT_EQ(r.dgrad, Accumulation::precise);
    EXPECT_EQ(r.wgrad, Accumulation::precise);
    if (!r.is_fp8()) continue;
    EXPECT_EQ(r.spec(Role::activation).tile, e.x);
    EXPECT_EQ(r.spec(Role::weight).tile, e.w);
    EXPECT_EQ(r.spec(Role::gradient).tile, e.x);
    EXPECT_EQ(r.x.format, Fp8Format::e4m3);
    EXPECT_EQ(r.w.format, Fp8Format::e4m3);
    EXPECT_EQ(r.g.format, e.g);
    for (const QuantSpec* spec : {&r.x, &r.w, &r.g}) {
      EXPECT_EQ(spec->source, e.source);
      EXPECT_EQ(spec->power_of_2, e.power_of_2);
      EXPECT_EQ(spec->epsilon, 0.0f);
      EXPECT_EQ(spec->margin, 0);
    }
    EXPECT_EQ(r.amax_history_len, 1024);
    EXPECT_FALSE(r.amax_most_recent);
  }
  EXPECT_EQ(recipe_names(), names);
}

TEST(Recipes, OptionsReachTheOperandsTheyAreFor) {
  const Recipe delayed = make_recipe("fp8_delayed", {.format = "e4m3",
                                                     .amax_history_len = 7,
                                                     .amax_compute_algo = "most_recent",
                                                     .margin = -3,
                                                     .power_of_2 = "true",
                                                     .amax_epsilon = 1.0,
                                                     .head = "recipe",
                                                     .skip = {"a", "b"}});
  EXPECT_EQ(delayed.g.format, Fp8Format::e4m3);
  EXPECT_EQ(delayed.amax_history_len, 7);
  EXPECT_TRUE(delayed.amax_most_recent);
  EXPECT_TRUE(delayed.head_fp8);
  EXPECT_EQ(delayed.skip, (std::vector<std::string>{"a", "b"}));
  for (const QuantSpec* spec : {&delayed.x, &delayed.w, &delayed.g}) {
    EXPECT_EQ(spec->margin, -3);
    EXPECT_FALSE(spec->power_of_2) << "fp8_delayed ignores it";
    EXPECT_EQ(spec->epsilon, 0.0f) << "fp8_delayed ignores it";
  }
  EXPECT_EQ(delayed.attention, AttentionPrecision::bf16);
  EXPECT_EQ(make_recipe("fp8_delayed", {.attention = "fp8_forward"}).attention, AttentionPrecision::fp8_forward);
  EXPECT_EQ(make_recipe("fp8_delayed", {.attention = "fp8"}).attention, AttentionPrecision::fp8);
  for (const char* name : {"fp8_current", "fp8_rowwise", "fp8_block"}) {
    for (const char* power_of_2 : {"true", "false"}) {
      const Recipe r = make_recipe(name, {.power_of_2 = power_of_2, .amax_epsilon = 0.25});
      for (const QuantSpec* spec : {&r.x, &r.w, &r.g}) {
        EXPECT_EQ(spec->power_of_2, power_of_2 == std::string("true")) << name;
        EXPECT_EQ(spec->epsilon, 0.25f) << name;
        EXPECT_EQ(spec->margin, 0) << name;
      }
    }
  }
  // An E8M0 scale is always a power of two, whatever the options say.
  EXPECT_TRUE(make_recipe("mxfp8", {.power_of_2 = "false"}).x.power_of_2);
  for (const char* name : {"fp8_rowwise", "fp8_block", "mxfp8"}) {
    EXPECT_EQ(make_recipe(name, {.format = "hybrid"}).g.format, Fp8Format::e4m3) << name;
  }
  const Recipe fast = make_recipe("fp8_block", {.accumulation = {"fast", "fast", "fast"}});
  const Recipe precise = make_recipe("fp8_current", {.accumulation = {.fprop = "precise"}});
  const Recipe fast_dgrad = make_recipe("fp8_delayed", {.accumulation = {.dgrad = "fast"}});
  EXPECT_EQ(fast.fprop, Accumulation::fast);
  EXPECT_EQ(fast.dgrad, Accumulation::fast);
  EXPECT_EQ(fast.wgrad, Accumulation::fast);
  EXPECT_EQ(precise.fprop, Accumulation::precise);
  EXPECT_EQ(fast_dgrad.fprop, Accumulation::fast);  // as fp8_delayed has it
  EXPECT_EQ(fast_dgrad.dgrad, Accumulation::fast);
  EXPECT_EQ(fast_dgrad.wgrad, Accumulation::precise);
  EXPECT_TRUE(make_recipe("fp8_rowwise", {.wgrad = "bf16"}).wgrad_bf16);
  // In BF16 recipes these options have nothing to keep in BF16.
  EXPECT_FALSE(make_recipe("bf16", {.wgrad = "bf16"}).wgrad_bf16);
  EXPECT_FALSE(make_recipe("bf16", {.head = "recipe"}).head_fp8);
}

TEST(Recipes, RefuseWhatTheyDoNotKnow) {
  const std::string list = joined(recipe_names());  // Recipes.AreTheTable says what they are
  EXPECT_EQ(refusal("fp8_delay", {}),
            concat("precision.recipe = \"fp8_delay\": no such recipe (did you mean fp8_delayed?); there are ", list));
  EXPECT_EQ(refusal("", {}), concat("precision.recipe = \"\": no such recipe; there are ", list));
  EXPECT_EQ(refusal("bf16", {.format = "hybird"}), "precision.format = \"hybird\": must be hybrid | e4m3 (did you mean hybrid?)");
  EXPECT_EQ(refusal("bf16", {.amax_compute_algo = "mean"}),
            "precision.amax_compute_algo = \"mean\": must be max | most_recent (did you mean max?)");
  EXPECT_EQ(refusal("bf16", {.power_of_2 = "yes"}), "precision.power_of_2 = \"yes\": must be auto | true | false");
  EXPECT_EQ(refusal("bf16", {.accumulation = {.dgrad = "slow"}}),
            "precision.accumulation.dgrad = \"slow\": must be auto | fast | precise");
  EXPECT_EQ(refusal("bf16", {.wgrad = "fp64"}), "precision.wgrad = \"fp64\": must be recipe | bf16");
  EXPECT_EQ(refusal("bf16", {.head = "bf15"}), "precision.head = \"bf15\": must be bf16 | recipe (did you mean bf16?)");
  EXPECT_EQ(refusal("bf16", {.amax_history_len = 0}), "precision.amax_history_len = 0: must be at least 1");
  EXPECT_EQ(refusal("bf16", {.margin = 33}), "precision.margin = 33: must be between -32 and 32");
  EXPECT_EQ(refusal("bf16", {.margin = -33}), "precision.margin = -33: must be between -32 and 32");
  EXPECT_EQ(refusal("bf16", {.amax_epsilon = -1}), "precision.amax_epsilon = -1: must be between 0 and 1e30");
  EXPECT_NE(refusal("bf16", {.amax_epsilon = std::numeric_limits<double>::quiet_NaN()}), "");
  EXPECT_EQ(refusal("bf16", {.margin = 32}), "");
  for (const char* name : {"fp8_rowwise", "mxfp8"}) {
    EXPECT_EQ(
        refusal(name, {.weight_transpose_cache = false}),
        concat("precision.weight_transpose_cache = false: ", name,
               " scales the rows and the columns of a weight separately, so its transposed codes cannot be made from its codes"));
  }
  for (const char* name : {"bf16", "fp8_delayed", "fp8_current", "fp8_block"})
    EXPECT_EQ(refusal(name, {.weight_transpose_cache = false}), "");
}

TEST(Recipes, AttentionInFp8NeedsDelayedScalesAndAGpuThatHasIt) {
  EXPECT_EQ(refusal("fp8_delayed", {.attention = "fp16"}),
            "precision.attention = \"fp16\": must be bf16 | fp8_forward | fp8 (did you mean bf16?)");
  for (const char* name : {"bf16", "fp32", "fp8_block", "fp8_current", "fp8_rowwise", "mxfp8"}) {
    EXPECT_EQ(refusal(name, {.attention = "fp8_forward"}),
              concat("precision.attention = \"fp8_forward\" with precision.recipe = \"", name,
                     "\": attention in FP8 has delayed scales, which only fp8_delayed keeps; use that recipe, or "
                     "precision.attention = \"bf16\""));
  }
  const Recipe recipe = make_recipe("fp8_delayed", {.attention = "fp8_forward"});
  const auto check = [&](DeviceKind device, int capability) {
    return refusal([&] { check_device(recipe, device, capability, false); });
  };
  EXPECT_EQ(check(DeviceKind::cpu, 90), "");
  EXPECT_EQ(check(DeviceKind::cuda, 90), "");
  EXPECT_EQ(check(DeviceKind::cuda, 100), "");
  EXPECT_EQ(check(DeviceKind::cuda, 89),
            "precision.attention = \"fp8_forward\": cuDNN has no attention in FP8 for a GPU of compute capability 8.9, only from "
            "9.0 on; use precision.attention = \"bf16\"");
}

// The compute capabilities of A100, L4, H100, B200 and of a GeForce RTX 5090.
TEST(Recipes, RunOnGpusWithInstructionsForThem) {
  const auto check = [](const char* name, DeviceKind device, int capability, bool emulate = false) {
    return refusal([&] { check_device(make_recipe(name, {}), device, capability, emulate); });
  };
  const std::map<std::string, std::vector<int>> runs_on = {
      {"bf16", {80, 89, 90, 100, 120}},    {"fp32", {}},          {"fp8_block", {90}},  {"fp8_current", {89, 90, 100, 120}},
      {"fp8_delayed", {89, 90, 100, 120}}, {"fp8_rowwise", {90}}, {"mxfp8", {100, 120}}};
  for (const std::string& name : recipe_names()) {
    std::vector<int> accepted;
    for (const int capability : {70, 80, 89, 90, 100, 120}) {
      EXPECT_EQ(check(name.c_str(), DeviceKind::cpu, capability), "") << name;
      EXPECT_EQ(check(name.c_str(), DeviceKind::meta, capability), "") << name;
      if (check(name.c_str(), DeviceKind::cuda, capability) == "") accepted.push_back(capability);
    }
    EXPECT_EQ(accepted, runs_on.at(name)) << name;
  }
  EXPECT_EQ(check("fp32", DeviceKind::cuda, 90, true), "precision.recipe = \"fp32\" runs on the CPU only; use bf16 on a GPU");
  EXPECT_EQ(
      check("mxfp8", DeviceKind::cuda, 90),
      "precision.recipe = \"mxfp8\": a GPU of compute capability 9.0 has no instructions for it; precision.emulate = true runs "
      "it slowly; the GPU can run bf16, fp8_block, fp8_current, fp8_delayed or fp8_rowwise");
  EXPECT_EQ(check("mxfp8", DeviceKind::cuda, 90, true), "");
  EXPECT_EQ(
      check("fp8_block", DeviceKind::cuda, 100, true),
      "precision.recipe = \"fp8_block\": a GPU of compute capability 10.0 has no instructions for it; the GPU can run bf16, "
      "fp8_current, fp8_delayed or mxfp8");
  EXPECT_EQ(check("bf16", DeviceKind::cuda, 70),
            "precision.recipe = \"bf16\": a GPU of compute capability 7.0 has no instructions for it; the GPU can run no recipe");
}

TEST(Recipes, RefuseWeightsThatAreNoMultiplesOf16) {
  const auto check = [](const char* name, std::int64_t out, std::int64_t in) {
    return refusal([&] { check_shape(make_recipe(name, {}), "layer.one", out, in); });
  };
  for (const char* name : {"fp8_block", "fp8_current", "fp8_delayed", "fp8_rowwise", "mxfp8"}) {
    EXPECT_EQ(check(name, 16, 48), "");
    EXPECT_EQ(check(name, 24, 48),
              concat("layer.one: a weight [24, 48] cannot be quantised by ", name,
                     ": both dims must be multiples of 16 (precision.skip = [\"layer.one\"] keeps it in BF16)"));
    EXPECT_NE(check(name, 48, 17), "");
  }
  EXPECT_EQ(check("bf16", 7, 5), "");
  EXPECT_EQ(check("fp32", 7, 5), "");
}

TEST(Recipes, AdviseToSkipALinearOfBadShapeInAllLayersAtOnce) {
  const std::pair<const char*, const char*> advised[] = {
      {"model.layers.0.self_attn.q_proj.fused",
       "[\"model.layers.*.self_attn.q_proj.fused\"] keeps this linear of all layers in BF16)"},
      {"model.layers.1.mlp.experts.12.w2", "[\"model.layers.*.mlp.experts.*.w2\"] keeps this linear of all layers in BF16)"},
      {"lm_head", "[\"lm_head\"] keeps it in BF16)"}};
  for (const auto& [layer, advice] : advised)
    EXPECT_TRUE(testing::contains(refusal([&] { check_shape(make_recipe("fp8_current", {}), layer, 64, 24); }), advice));
}

TEST(Skip, KeepsLayersInBf16) {
  const auto compute = [](const std::vector<std::string>& skip, const std::vector<std::string>& parts) {
    return compute_of(make_recipe("fp8_current", {.skip = skip}), parts);
  };
  EXPECT_EQ(compute({}, {"a.q", "a.k"}), Compute::fp8);
  EXPECT_EQ(compute({"b.*"}, {"a.q", "a.k"}), Compute::fp8);
  EXPECT_EQ(compute({"a.*"}, {"a.q", "a.k"}), Compute::bf16);
  EXPECT_EQ(compute({"a.q.fused"}, {"a.q", "a.k"}), Compute::bf16);
  EXPECT_EQ(compute({"a.q"}, {"a.q"}), Compute::bf16);
  EXPECT_EQ(compute({"a"}, {"a.q"}), Compute::fp8) << "patterns are over whole names";
  EXPECT_EQ(compute_of(make_recipe("bf16", {.skip = {"a.q"}}), {"a.q", "a.k"}), Compute::bf16);
  EXPECT_EQ(compute_of(make_recipe("fp32", {.skip = {"*"}}), {"a.q", "a.k"}), Compute::fp32);

  const std::string split =
      "precision.skip: \"a.q\" matches a part of a.q.fused but not a.k; a fused linear is kept in BF16 whole or not at all";
  EXPECT_EQ(refusal([&] { compute({"a.q"}, {"a.q", "a.k"}); }), split);
  EXPECT_EQ(refusal([&] { compute({"a.*", "a.q"}, {"a.q", "a.k"}); }), split) << "in any order";
  EXPECT_EQ(refusal([&] { compute({"a.q", "a.*"}, {"a.q", "a.k"}); }), split);
}

TEST(Skip, PatternsMustMatchSomething) {
  const auto check = [](const std::vector<std::string>& skip) {
    return refusal([&] { check_skip_patterns(make_recipe("fp8_current", {.skip = skip}), {"a.q_proj", "a.k_proj", "lm_head"}); });
  };
  EXPECT_EQ(check({}), "");
  EXPECT_EQ(check({"*.q_proj", "lm_head"}), "");
  EXPECT_EQ(check({"lm_head", "b.*"}), "precision.skip: \"b.*\" matches no linear layer");
  EXPECT_EQ(check({"lm_heed"}), "precision.skip: \"lm_heed\" matches no linear layer (did you mean lm_head?)");
}

}  // namespace
}  // namespace octet::recipes
