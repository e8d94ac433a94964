// Runs of many steps on meshes, with ranks that are threads. They must learn as one rank does and repeat bit for bit.
#include <gtest/gtest.h>

#include "train/meshes.h"

namespace octet::testing {
namespace {

using nn::Checkpointing;

constexpr Checkpointing kModes[] = {Checkpointing::none, Checkpointing::selective, Checkpointing::full};

std::string name_of_case(const std::string& name, const std::string& recipe) { return concat(name, "_", recipe); }

struct Curve {
  std::string name;
  train::EngineOptions options;
  std::vector<Layout> layouts;
  Steps steps{.count = 20};
  double falls_to = 0.9;  // the largest last loss, as a share of the first; a model that does not learn would prove nothing
};
void PrintTo(const Curve& c, std::ostream* os) { *os << c.name; }

class Curves : public MeshTest, public ::testing::WithParamInterface<Curve> {};

TEST_P(Curves, LearnAsOneRank) {
  train::EngineOptions options = GetParam().options;
  options.model.init_std = 0.1;  // as small as expect_same_curve() asks for
  const RunState one = run_mesh(options, kAlone, GetParam().steps);
  EXPECT_LT(one.taken.losses.back(), GetParam().falls_to * one.taken.losses.front());
  for (const Layout& layout : GetParam().layouts) {
    SCOPED_TRACE(text(layout));
    expect_same_curve(run_mesh(options, layout, GetParam().steps), one);
  }
}

std::vector<Curve> curves() {
  // Eight ranks take one micro-batch of a step each. Fewer ranks take several.
  const std::vector<Layout> shards = {
      {.mesh = Mesh({1, 2, 1, 1})},
      {.mesh = Mesh({1, 4, 1, 1})},
      {.mesh = Mesh({1, 8, 1, 1}), .weights = Weights::resharded, .gradients = Gradients::sharded},
      {.mesh = Mesh({4, 1, 1, 1})},
      {.mesh = Mesh({2, 2, 1, 1})}};
  const Layout all_axes{.mesh = Mesh({1, 2, 2, 2})};
  std::vector<Curve> curves;
  for (const std::string& recipe : all_recipes()) {
    const auto add = [&](const std::string& name, Curve curve) {
      curve.name = name_of_case(name, recipe);
      curves.push_back(std::move(curve));
    };
    add("Context", {.options = context_options(recipe), .layouts = {kContexts[0], kContexts[1]}});
    add("Tensor", {.options = tensor_options(recipe), .layouts = {kTensors[0], kTensors[1]}});
    add("Shards", {.options = tensor_options(recipe), .layouts = shards, .steps = {.count = 20, .micro_batches = 8}});
    add("AllAxes", {.options = tensor_options(recipe), .layouts = {all_axes}});
    add("AllAxesAddUp", {.options = tensor_options(recipe), .layouts = {all_axes}, .steps = {.count = 20, .micro_batches = 4}});
    add("GptNeoxParallel", {.options = gpt_neox_options(recipe, true), .layouts = {kGptNeox[3]}});
    add("GptNeoxSequential", {.options = gpt_neox_options(recipe, false), .layouts = {kGptNeox[2]}});
    add("Mixture", {.options = mixture_options(recipe),
                    .layouts = {kMixtures[2], kMixtures[8]},
                    .steps = {.count = 6, .micro_batches = 4, .learning_rate = 3e-3},
                    .falls_to = 1});
  }
  return curves;
}

struct Repetition {
  std::string name;
  train::EngineOptions options;
  Layout layout;
  Steps steps{.count = 3};
  bool reshards = false;  // repeat with resharded weights; otherwise repeat with each mode of checkpointing
};
void PrintTo(const Repetition& r, std::ostream* os) { *os << r.name; }

class Repetitions : public MeshTest, public ::testing::WithParamInterface<Repetition> {};

// The same mesh must give the same bits, whatever backward recomputes and however weights are kept.
TEST_P(Repetitions, HaveTheSameBits) {
  const Repetition& r = GetParam();
  const RunState first = run_mesh(r.options, r.layout, r.steps);
  if (r.reshards) {
    Layout layout = r.layout;
    layout.weights = Weights::resharded;
    expect_same_bits(run_mesh(r.options, layout, r.steps), first);
    return;
  }
  for (const Checkpointing mode : kModes) {
    SCOPED_TRACE(concat("checkpointing ", static_cast<int>(mode)));
    train::EngineOptions options = r.options;
    options.checkpointing = mode;
    expect_same_bits(run_mesh(options, r.layout, r.steps), first);
  }
}

std::vector<Repetition> repetitions() {
  std::vector<Repetition> repetitions;
  for (const std::string& recipe : all_recipes()) {
    const auto add = [&](const std::string& name, Repetition repetition) {
      repetition.name = name_of_case(name, recipe);
      repetitions.push_back(std::move(repetition));
    };
    const Steps eight{.count = 3, .micro_batches = 8, .learning_rate = 1e-2};
    train::EngineOptions documents = context_options(recipe);
    documents.document_mask = true;
    add("Context", {.options = documents, .layout = kContexts[0]});
    add("ContextOfReplicas", {.options = documents, .layout = kContexts[2]});
    add("Tensor", {.options = tensor_options(recipe), .layout = kTensors[0]});
    add("TensorOfShards", {.options = tensor_options(recipe), .layout = {.mesh = Mesh({1, 2, 1, 2})}, .reshards = true});
    add("AllAxes", {.options = tensor_options(recipe), .layout = {.mesh = Mesh({1, 2, 2, 2})}});
    add("Replicas", {.options = context_options(recipe), .layout = {.mesh = Mesh({4, 1, 1, 1})}, .steps = eight});
    add("Shards", {.options = context_options(recipe), .layout = {.mesh = Mesh({1, 4, 1, 1})}, .steps = eight, .reshards = true});
    add("Hybrid", {.options = context_options(recipe), .layout = {.mesh = Mesh({2, 2, 1, 1})}, .steps = eight, .reshards = true});
    add("Resharded", {.options = context_options(recipe),
                      .layout = {.mesh = Mesh({2, 2, 1, 1}), .weights = Weights::resharded, .gradients = Gradients::sharded},
                      .steps = eight});
    add("GptNeoxParallel", {.options = gpt_neox_options(recipe, true), .layout = kGptNeox[3]});
    add("GptNeoxSequential", {.options = gpt_neox_options(recipe, false), .layout = kGptNeox[4]});
  }
  return repetitions;
}

const auto kNameOfParam = [](const auto& info) { return info.param.name; };

INSTANTIATE_TEST_SUITE_P(Recipes, Curves, ::testing::ValuesIn(curves()), kNameOfParam);
INSTANTIATE_TEST_SUITE_P(Recipes, Repetitions, ::testing::ValuesIn(repetitions()), kNameOfParam);

// Other options that change how a linear reads and keeps its operands: a head in FP8, a tied head that is read as values and as
// codes, wgrad in BF16, a single linear in BF16, and 16-bit states.
struct Variant {
  std::string name, recipe;
  recipes::Options options = {};
  bool tied_head = false, small_states = false;
};
train::EngineOptions options_of(const Variant& v) {
  train::EngineOptions options = tensor_options(v.recipe);
  options.recipe = recipe_named(v.recipe, v.options);
  options.model.vocab = 64;  // 16 rows of the head on each rank
  options.model.init_std = 0.1;
  options.model.tied_head = v.tied_head;
  options.storage.master_weights = !v.small_states;
  if (v.small_states) options.storage.grad = options.storage.moments = DType::bf16;
  return options;
}
std::vector<Variant> variants() {
  return {{"Head", "fp8_delayed", {.head = "recipe"}},
          {"HeadCurrent", "fp8_current", {.head = "recipe"}},
          {"HeadTied", "fp8_delayed", {.head = "recipe"}, true},
          {"HeadTiedRowwise", "fp8_rowwise", {.head = "recipe"}, true},
          {"Wgrad", "fp8_delayed", {.wgrad = "bf16"}},
          {"WgradRowwise", "fp8_rowwise", {.wgrad = "bf16"}},
          {"Skip", "fp8_current", {.skip = {"model.layers.1.mlp.down_proj"}}},
          {"SmallStates", "fp8_delayed", {}, false, true}};
}
std::vector<Curve> curves_of_variants() {
  const Layout mixed{.mesh = Mesh({1, 2, 1, 2}), .weights = Weights::resharded, .gradients = Gradients::sharded};
  std::vector<Curve> curves;
  for (const Variant& v : variants()) {
    curves.push_back(
        {.name = v.name, .options = options_of(v), .layouts = {kTensors[1], mixed}, .steps = {.count = 6}, .falls_to = HUGE_VAL});
  }
  return curves;
}
std::vector<Repetition> repetitions_of_variants() {
  std::vector<Repetition> repetitions;
  for (const Variant& v : variants()) {
    repetitions.push_back({.name = v.name, .options = options_of(v), .layout = kTensors[0], .steps = {.count = 2}});
  }
  return repetitions;
}
INSTANTIATE_TEST_SUITE_P(Variants, Curves, ::testing::ValuesIn(curves_of_variants()), kNameOfParam);
INSTANTIATE_TEST_SUITE_P(Variants, Repetitions, ::testing::ValuesIn(repetitions_of_variants()), kNameOfParam);

}  // namespace
}  // namespace octet::testing
