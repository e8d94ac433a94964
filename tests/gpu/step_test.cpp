// Compares whole training steps of every recipe on the GPU with the CPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <span>

#include "gpu/codes.h"
#include "gpu/gradients.h"
#include "octet/kernels/cross_entropy/cross_entropy.h"
#include "octet/tensor/host_tensor.h"
#include "support/blind_routers.h"
#include "support/emulated_tiles.h"
#include "support/near.h"
#include "support/tiny_model.h"

namespace octet::testing {
namespace {

struct Variant {
  std::string name, recipe;
  recipes::Options options = {};
  bool tied_head = false, master_weights = true;
  DType grad = DType::f32, moments = DType::f32;
  std::int64_t window = 0;
  std::optional<bool> gpt_neox = {};  // whether its residual branches are parallel
  std::int64_t experts = 0;           // tokens go to all of them: a choice would turn a rounding into another expert
  std::int64_t blind_choice = 0;      // instead to the first so many of them, with routers of zeros
};
void PrintTo(const Variant& variant, std::ostream* out) { *out << variant.name; }

std::vector<Variant> variants() {
  std::vector<Variant> result;
  for (const std::string& recipe : all_recipes()) {
    if (recipe == "fp32") continue;
    result.push_back({.name = recipe, .recipe = recipe});
    result.push_back({.name = recipe + "_mixture", .recipe = recipe, .experts = 3});
    for (const bool parallel : {true, false}) {
      result.push_back(
          {.name = concat("gpt_neox_", parallel ? "parallel_" : "sequential_", recipe), .recipe = recipe, .gpt_neox = parallel});
    }
  }
  result.push_back({.name = "delayed_head", .recipe = "fp8_delayed", .options = {.head = "recipe"}});
  result.push_back({.name = "delayed_wgrad_bf16", .recipe = "fp8_delayed", .options = {.wgrad = "bf16"}});
  result.push_back({.name = "block_tied_head", .recipe = "fp8_block", .options = {.head = "recipe"}, .tied_head = true});
  result.push_back({.name = "current_skip", .recipe = "fp8_current", .options = {.skip = {"model.layers.1.mlp.down_proj"}}});
  result.push_back(
      {.name = "delayed_16_bit", .recipe = "fp8_delayed", .master_weights = false, .grad = DType::bf16, .moments = DType::bf16});
  result.push_back({.name = "bf16_window", .recipe = "bf16", .window = 20});
  return result;
}

// The model is a little wider than that of the CPU tests. 128 tokens give both padding and whole tiles.
train::EngineOptions options_of(const Variant& v) {
  train::EngineOptions options = tiny_options(v.recipe);
  options.recipe = recipe_named(v.recipe, v.options);
  if (v.gpt_neox) options.model = tiny_gpt_neox_config(*v.gpt_neox);
  options.model.dim = 64;
  options.model.head_dim = 16;
  if (v.gpt_neox) options.model.rotary_dim = *v.gpt_neox ? 4 : 16;
  options.model.ffn = 160;
  if (v.experts > 0) {
    options.model.family = "mixtral";
    options.model.experts = options.model.experts_per_token = v.experts;
    if (v.blind_choice > 0) options.model.experts_per_token = v.blind_choice;
    options.model.router_balance = 0.05;
    options.model.router_z = 0.01;
  }
  options.model.tied_head = v.tied_head;
  options.model.sliding_window = v.window;
  options.seq_len = 70;
  options.storage.master_weights = v.master_weights;
  options.storage.grad = v.grad;
  options.storage.moments = v.moments;
  options.deterministic = true;
  return options;
}

class GpuStep : public ::testing::TestWithParam<Variant> {
 protected:
  train::EngineOptions options = options_of(GetParam());
  Tokens tokens = random_tokens(options.seq_len * options.micro_batch_size, options.model.vocab);
};

// Initial values are a pure function of the seed on every device.
TEST_P(GpuStep, BeginsWithTheSameBits) {
  const auto cpu = make_engine(options), gpu = make_engine(options, 7, DeviceKind::cuda);
  auto expected = cpu->model().parameters().parameters().begin();
  for (const parallel::Parameter& p : gpu->model().parameters().parameters()) {
    EXPECT_TRUE(same_bytes(to_host(gpu->stream(), p.primary()).view(), expected->primary())) << p.spec.name;
    expect_same_codes(gpu->stream(), p.codes, expected->codes, p.spec.name);
    ++expected;
  }
}

// Both devices round the same arithmetic, each in its own order. So their distance from each other cannot be much larger than
// that from exact arithmetic, which is the CPU's FP64 gradient of the same weights.
void expect_gradients_as_near_as_rounding_allows(const train::EngineOptions& options, const Tokens& tokens, bool blind) {
  const auto cpu = make_engine(options), gpu = make_engine(options, 7, DeviceKind::cuda);
  train::EngineOptions exact_options = options;
  exact_options.recipe = recipe_named("fp64");
  const auto exact = make_engine(exact_options);
  auto from = cpu->model().parameters().parameters().begin();
  for (parallel::Parameter& p : exact->model().parameters().parameters()) {
    const std::vector<double> bf16 = values_of(from->primary());
    for (std::size_t i = 0; i < bf16.size(); ++i) {
      p.value.as<double>()[i] = static_cast<double>(static_cast<float>(BFloat16(static_cast<float>(bf16[i]))));
    }
    ++from;
  }
  for (train::Engine* engine : {cpu.get(), gpu.get(), exact.get()}) {
    if (blind) blind_routers(*engine);
  }
  // The second pass uses the delayed scales of the first.
  for (std::uint32_t step = 1; step <= 2; ++step) {
    const std::vector<double> on_cpu = gradients(*cpu, tokens), on_gpu = gradients(*gpu, tokens),
                              truth = gradients(*exact, tokens);
    EXPECT_LE(distance(on_gpu, on_cpu), 1.5 * distance(on_cpu, truth)) << "step " << step;
    EXPECT_LE(distance(on_gpu, truth), 1.25 * distance(on_cpu, truth)) << "step " << step;
    EXPECT_GE(distance(on_gpu, truth), 0.5 * distance(on_cpu, truth)) << "step " << step << ": more exact than the recipe can be";
    for (train::Engine* engine : {cpu.get(), gpu.get()}) engine->apply(0.0, step);
  }
}

TEST_P(GpuStep, GradientsAreAsNearAsRoundingAllows) { expect_gradients_as_near_as_rounding_allows(options, tokens, false); }

// All tokens choose the same experts, and the others get none.
class GpuCrowdedExperts : public ::testing::TestWithParam<std::string> {};

TEST_P(GpuCrowdedExperts, GradientsAreAsNearAsRoundingAllows) {
  for (const std::int64_t chosen : {1, 2}) {
    SCOPED_TRACE(concat(chosen, " of 4 experts"));
    const train::EngineOptions options =
        options_of({.name = "crowded", .recipe = GetParam(), .experts = 4, .blind_choice = chosen});
    expect_gradients_as_near_as_rounding_allows(
        options, random_tokens(options.seq_len * options.micro_batch_size, options.model.vocab), true);
  }
}

INSTANTIATE_TEST_SUITE_P(Recipes, GpuCrowdedExperts,
                         ::testing::Values("bf16", "fp8_delayed", "fp8_current", "fp8_rowwise", "fp8_block", "mxfp8"));

// The losses of a run stay close to each other, so the updates of the weights are right too.
TEST_P(GpuStep, LearnsAlike) {
  const auto cpu = make_engine(options), gpu = make_engine(options, 7, DeviceKind::cuda);
  expect_to_learn_alike(*cpu, *gpu, tokens);
}

// Scales of weights have the CPU's bits. Scales of results of products are as close as the rounding of the products allows. In
// evaluation the loss of a sequence does not depend on other sequences.
TEST_P(GpuStep, CalibratesAndEvaluatesLikeTheCpu) {
  const UseTileKernel none(nullptr);  // the largest gradient depends on the host's rounding, too
  options.calibrates = options.recipe.delayed();
  const auto cpu = make_engine(options), gpu = make_engine(options, 7, DeviceKind::cuda);
  const auto length = static_cast<std::size_t>(options.seq_len);
  Tokens alone = tokens, beside = tokens;
  std::fill(alone.targets.begin() + options.seq_len, alone.targets.end(), kernels::kIgnoredTarget);
  beside = alone;
  std::fill(beside.tokens.begin() + options.seq_len, beside.tokens.end(), 3);
  double losses[2] = {};
  std::size_t at = 0;
  for (train::Engine* engine : {cpu.get(), gpu.get()}) {
    if (options.calibrates) engine->calibrate(1, [&] { return tokens.batch(); });
    const auto expected = engine->evaluate(alone.tokens, alone.targets);
    EXPECT_EQ(engine->evaluate(beside.tokens, beside.targets), expected);
    const auto first = std::span(alone.tokens).first(length), targets = std::span(alone.targets).first(length);
    EXPECT_EQ(engine->evaluate(first, targets), expected);
    losses[at++] = expected[0];
  }
  EXPECT_NEAR(losses[1], losses[0], 0.01 * losses[0]);
  const auto expected = cpu->model().scales().tensors(), actual = gpu->model().scales().tensors();
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const std::vector<double> on_cpu = values_of(expected[i].tensor),
                              on_gpu = values_of(to_host(gpu->stream(), actual[i].tensor).view());
    for (std::size_t k = 0; k < on_cpu.size(); ++k) {
      const bool weight = expected[i].name.find(".w.") != std::string::npos;
      EXPECT_NEAR(on_gpu[k], on_cpu[k], weight ? 0.0 : 0.25 * on_cpu[k]) << expected[i].name << " " << k;
    }
  }
}

TEST_P(GpuStep, IsTheSameEveryTimeAndInEveryCheckpointingMode) {
  std::vector<double> expected;
  for (const nn::Checkpointing mode :
       {nn::Checkpointing::none, nn::Checkpointing::none, nn::Checkpointing::selective, nn::Checkpointing::full}) {
    options.checkpointing = mode;
    const auto gpu = make_engine(options, 7, DeviceKind::cuda);
    gradients(*gpu, tokens);
    gpu->apply(1e-3, 1);
    const std::vector<double> actual = gradients(*gpu, tokens);
    if (expected.empty()) expected = actual;
    EXPECT_EQ(distance(actual, expected), 0.0) << "mode " << static_cast<int>(mode);
  }
  const ScaleTile of_weights = options.recipe.w.tile;
  if (!options.recipe.is_fp8() || (of_weights != ScaleTile::tensor && of_weights != ScaleTile::block_128x128)) return;
  options.recipe.weight_transpose_cache = false;
  const auto gpu = make_engine(options, 7, DeviceKind::cuda);
  gradients(*gpu, tokens);
  gpu->apply(1e-3, 1);
  EXPECT_EQ(distance(gradients(*gpu, tokens), expected), 0.0) << "transposed weights made in backward";
}

TEST_P(GpuStep, TakesThePlannedMemoryToTheByte) {
  for (const nn::Checkpointing mode : {nn::Checkpointing::none, nn::Checkpointing::selective, nn::Checkpointing::full}) {
    options.checkpointing = mode;
    const train::MemoryPlan plan = train::measure(options, DeviceKind::cuda);
    const auto gpu = make_engine(options, 7, DeviceKind::cuda);
    const std::size_t before = gpu->device().memory().allocations;
    gradients(*gpu, tokens);
    const std::size_t of_pass[] = {gpu->stash().allocations(), gpu->scratch().allocations()};
    gpu->apply(1e-3, 1);
    gpu->evaluate(tokens.tokens, tokens.targets);
    EXPECT_EQ(gpu->device().memory().allocations, before) << "a step allocated memory";
    for (std::size_t i = 0; i < kMemoryCategories; ++i) {
      EXPECT_EQ(gpu->device().memory().peak[i], plan.bytes[i]) << name_of(static_cast<MemoryCategory>(i));
    }
    const Arena* const arenas[] = {&gpu->stash(), &gpu->scratch()};
    for (const int i : {0, 1}) {
      if (GetParam().experts == 0) {
        EXPECT_EQ(arenas[i]->high_water(), arenas[i]->capacity());
        continue;
      }
      // A mixture also has room for what alignment can add to each allocation of a pass if rows come in other numbers.
      EXPECT_LE(arenas[i]->high_water(), arenas[i]->capacity());
      EXPECT_LE(arenas[i]->capacity() - arenas[i]->high_water(), of_pass[i] * Device::kAlignment);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Recipes, GpuStep, ::testing::ValuesIn(variants()), [](const auto& param) { return param.param.name; });

}  // namespace
}  // namespace octet::testing
