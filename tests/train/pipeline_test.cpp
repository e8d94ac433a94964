// Pipeline stages compute what one rank computes. Micro-batches reach every parameter in the same order, so losses, gradients, scales
// and weights have the same bits; only the norm of the gradient is added up in another order.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "octet/train/health.h"
#include "support/blind_routers.h"
#include "train/meshes.h"

namespace octet::testing {
namespace {

using parallel::Stages;

train::EngineOptions deep(train::EngineOptions options, std::int64_t layers = 4) {
  options.model.layers = layers;
  options.optimizer.max_grad_norm = 0;  // clipping would multiply all gradients by a factor from the norm
  return options;
}

Layout with_stages(Layout layout, Stages stages) {
  const Mesh& mesh = layout.mesh;
  layout.mesh = Mesh({mesh.size(parallel::Axis::replicate), mesh.size(parallel::Axis::shard), mesh.size(parallel::Axis::context),
                      mesh.size(parallel::Axis::tensor)},
                     mesh.expert(), stages);
  return layout;
}

class Pipeline : public MeshTest {
 protected:
  static void expect_bits_of_one_stage(const train::EngineOptions& options, const Layout& layout, Stages stages,
                                       int micro_batches) {
    SCOPED_TRACE(concat(stages.count, " stages of ", stages.chunks, " chunks, ", micro_batches, " micro-batches, ", text(layout)));
    const Steps steps{.count = 2, .micro_batches = micro_batches * layout.mesh.data_coordinates()};
    RunState expected = run_mesh(options, layout, steps), actual = run_mesh(options, with_stages(layout, stages), steps);
    EXPECT_NEAR(actual.taken.norm, expected.taken.norm, 1e-12 * expected.taken.norm);
    actual.taken.norm = expected.taken.norm;
    expect_same_bits(actual, expected);
  }
};

TEST_F(Pipeline, HasTheBitsOfOneRankInEveryRecipe) {
  for (const std::string& recipe : recipes::recipe_names()) {
    SCOPED_TRACE(recipe);
    const train::EngineOptions options = deep(context_options(recipe));
    expect_bits_of_one_stage(options, {}, {.count = 2}, 3);
    expect_bits_of_one_stage(options, {}, {.count = 4}, 2);
    expect_bits_of_one_stage(options, {}, {.count = 2, .chunks = 2}, 4);
  }
}

TEST_F(Pipeline, HasTheBitsOfOneRankHoweverActivationsAreKept) {
  for (const nn::Checkpointing mode : {nn::Checkpointing::selective, nn::Checkpointing::full}) {
    train::EngineOptions options = deep(context_options("fp8_delayed"));
    options.checkpointing = mode;
    options.document_mask = true;
    expect_bits_of_one_stage(options, {}, {.count = 2}, 1);  // fewer micro-batches than stages
    expect_bits_of_one_stage(options, {}, {.count = 2, .chunks = 2}, 2);
    expect_bits_of_one_stage(options, {}, {.count = 4}, 6);
  }
}

// 6 blocks, embedding and head: the first and the last chunk have one block less, or none.
TEST_F(Pipeline, GivesTheEndsOfTheModelLess) {
  expect_bits_of_one_stage(deep(context_options("fp8_rowwise"), 6), {}, {.count = 4}, 3);
  expect_bits_of_one_stage(deep(context_options("fp8_delayed"), 6), {}, {.count = 4, .chunks = 2}, 4);
}

TEST_F(Pipeline, JoinsEveryOtherAxis) {
  const Layout resharded{.mesh = Mesh({1, 2, 1, 1}), .weights = Weights::resharded, .gradients = Gradients::sharded};
  Layout replicas = resharded, context = resharded, tensor = resharded, experts = resharded;
  replicas.mesh = Mesh({2, 2, 1, 1});
  context.mesh = Mesh({1, 1, 2, 1});
  tensor.mesh = Mesh({1, 1, 1, 2});
  experts.mesh = Mesh({1, 2, 1, 1}, 2);
  for (const Stages stages : {Stages{.count = 2}, Stages{.count = 2, .chunks = 2}}) {
    expect_bits_of_one_stage(deep(context_options("fp8_delayed")), {.mesh = Mesh({1, 2, 1, 1})}, stages, 2);
    expect_bits_of_one_stage(deep(context_options("fp8_rowwise")), resharded, stages, 2);
    expect_bits_of_one_stage(deep(context_options("bf16")), replicas, stages, 2);
    expect_bits_of_one_stage(deep(context_options("fp8_block")), context, stages, 4);
    expect_bits_of_one_stage(deep(tensor_options("fp8_current")), tensor, stages, 2);
    expect_bits_of_one_stage(deep(mixture_options("fp8_delayed")), experts, stages, 2);
    expect_bits_of_one_stage(deep(gpt_neox_options("fp8_delayed", true)), resharded, stages, 2);
    expect_bits_of_one_stage(deep(olmo2_options("fp8_delayed")), context, stages, 2);
  }
}

TEST_F(Pipeline, ARehearsalLeavesNoTrace) {
  const Steps steps{.count = 2, .micro_batches = 4};
  const Beside rehearsed{.before = [](train::Engine& engine) { engine.rehearse(); }};
  const Layout shards{.mesh = Mesh({1, 2, 1, 1}), .weights = Weights::resharded, .gradients = Gradients::sharded};
  for (const Layout& layout : {Layout{}, shards, with_stages({}, {.count = 2}), with_stages(shards, {.count = 2, .chunks = 2})}) {
    SCOPED_TRACE(text(layout));
    for (train::EngineOptions options : {deep(context_options("fp8_delayed")), deep(mixture_options("fp8_block"))}) {
      options.calibrates = options.recipe.delayed();
      expect_same_bits(run_mesh(options, layout, steps, rehearsed), run_mesh(options, layout, steps));
    }
  }
}

TEST_F(Pipeline, ARehearsalMeasuresHealthAndKeepsNothing) {
  train::EngineOptions options = deep(context_options("fp8_block"));
  train::HealthWatch health;
  options.watch = &health;
  train::Engine engine(options, DeviceKind::cpu);
  engine.initialise(1);
  engine.stream().start_profile();
  engine.rehearse();
  const std::vector<OpTime> profile = engine.stream().take_profile();
  EXPECT_TRUE(
      std::any_of(profile.begin(), profile.end(), [](const OpTime& op) { return op.op == std::string("quantize_health"); }));
  EXPECT_TRUE(health.take(1).empty());
  EXPECT_TRUE(health.take_attention(1).empty());
}

TEST_F(Pipeline, InterleavedStagesOnGpusRefuseExpertsThatMultiplyAlone) {
  const Layout interleaved = with_stages({}, {.count = 2, .chunks = 2});
  for (const std::string recipe : {"bf16", "fp8_delayed", "fp8_rowwise", "fp8_block", "mxfp8"}) {
    SCOPED_TRACE(recipe);
    train::EngineOptions options = deep(mixture_options(recipe));
    options.layout = interleaved;
    if (recipe == "mxfp8") {
      EXPECT_THROW(train::measure(options, DeviceKind::cuda), Error);
    } else {
      EXPECT_GT(train::measure(options, DeviceKind::cuda).total(), 0);
    }
    options.layout = with_stages({}, {.count = 2});
    EXPECT_GT(train::measure(options, DeviceKind::cuda).total(), 0);
  }
  // The kernel of all experts takes ranks that are a multiple of 16. Adapters of attention have products of their own anyway.
  train::EngineOptions lora = adapted(deep(mixture_options("fp8_delayed")));
  lora.layout = interleaved;
  EXPECT_THROW(train::measure(lora, DeviceKind::cuda), Error);
  lora.adapters.rank = 16;
  lora.adapters.alpha = 12;
  EXPECT_GT(train::measure(lora, DeviceKind::cuda).total(), 0);
  lora = adapted(lora, {"q_proj"});
  EXPECT_GT(train::measure(lora, DeviceKind::cuda).total(), 0);
}

TEST_F(Pipeline, EvaluatesAndExportsWhatOneRankDoes) {
  const train::EngineOptions options = deep(context_options("fp8_delayed"));
  const Steps steps{.count = 2, .micro_batches = 4};
  std::mutex mutex;
  const auto results = [&](const Layout& layout) {
    std::vector<std::array<double, 2>> losses;
    ByName<std::uint8_t> weights;
    on_engines(options, layout, [&](train::Engine& engine, const parallel::Groups&) {
      take(engine, steps);
      const std::array<double, 2> loss = evaluate_a_row(engine);
      const ByName<std::uint8_t> exported = exported_weights(engine);
      const std::lock_guard lock(mutex);
      losses.push_back(loss);
      weights.insert(exported.begin(), exported.end());
    });
    for (const auto& loss : losses) EXPECT_EQ(loss, losses.front());  // all ranks know it
    return std::pair(losses.front(), weights);
  };
  const auto expected = results({});
  for (const Stages stages : {Stages{.count = 2}, Stages{.count = 2, .chunks = 2}}) {
    const auto actual = results(with_stages({}, stages));
    EXPECT_EQ(actual.first, expected.first);
    EXPECT_EQ(actual.second, expected.second);
  }
}

// Every stage waits for messages, so each knows a bubble, and all ranks know the mean. tests/device shows how waits are timed.
TEST_F(Pipeline, EveryStageKnowsItsBubbleAndTheMean) {
  for (const Layout& layout : {Layout{}, Layout{.mesh = Mesh({1, 2, 1, 1})}}) {
    SCOPED_TRACE(text(layout));
    const int each = layout.mesh.ranks();
    std::mutex mutex;
    std::vector<double> bubbles, means;
    on_engines(deep(context_options("bf16")), with_stages(layout, {.count = 2}),
               [&](train::Engine& engine, const parallel::Groups&) {
                 engine.model().units().start_waits();
                 take(engine, {.count = 1, .micro_batches = 4 * layout.mesh.data_coordinates()});
                 const Waits waits = engine.model().units().take_waits();
                 EXPECT_GT(waits.stages, 0) << engine.options().rank;
                 EXPECT_EQ(waits.all > waits.stages, each > 1);
                 const double mean = engine.mean_over_ranks(waits.stages);
                 const std::lock_guard lock(mutex);
                 bubbles.push_back(waits.stages);
                 means.push_back(mean);
               });
    const double sum = std::accumulate(bubbles.begin(), bubbles.end(), 0.0);
    for (const double mean : means) EXPECT_NEAR(mean, sum / (2 * each), 2 * each * 0x1p-52 * sum);
  }
}

TEST_F(Pipeline, OneStageHasNoBubble) {
  on_engines(deep(context_options("bf16")), {.mesh = Mesh({2, 2, 1, 1})}, [&](train::Engine& engine, const parallel::Groups&) {
    engine.model().units().start_waits();
    take(engine, {.count = 1, .micro_batches = 4});
    const Waits waits = engine.model().units().take_waits();
    EXPECT_GT(waits.all, 0);
    EXPECT_EQ(waits.stages, 0);
  });
}

TEST_F(Pipeline, RefusesATiedHead) {
  train::EngineOptions options = deep(context_options("bf16"));
  options.model.tied_head = true;
  options.layout = with_stages({}, {.count = 2});
  EXPECT_THROW(train::measure(options, DeviceKind::cpu), Error);
}

// All tokens go to one expert, in two rounds. Their backward recomputes what one round would have kept, in the stash of the pass
// under way, which on a pipeline stage is another one than that of the forward pass.
TEST_F(Pipeline, HasRoomForExpertsInSeveralRounds) {
  const Layout layout{.mesh = Mesh({1, 4, 1, 1}, 4)};
  const Steps steps{.count = 1, .micro_batches = 8};
  for (const std::string recipe : {"bf16", "fp8_delayed"}) {
    for (const nn::Checkpointing mode : {nn::Checkpointing::none, nn::Checkpointing::selective, nn::Checkpointing::full}) {
      for (const std::vector<bool>& dense : {std::vector<bool>{}, {true, true, true, false}}) {
        SCOPED_TRACE(concat(recipe, ", checkpointing ", static_cast<int>(mode), dense.empty() ? "" : ", one mixture"));
        train::EngineOptions options = deep(mixture_options(recipe));
        options.checkpointing = mode;
        options.model.experts_per_token = 1;
        options.model.dense_layers = dense;
        options.micro_batch_size = 8;
        const RunState expected = run_mesh(options, layout, steps, {.before = blind_routers});
        RunState actual = run_mesh(options, with_stages(layout, {.count = 2}), steps, {.before = blind_routers});
        actual.taken.norm = expected.taken.norm;
        expect_same_bits(actual, expected);
      }
    }
  }
}

}  // namespace
}  // namespace octet::testing
