// Counts what context parallelism sends, and what routers count, with ranks that are threads. step_of_one_rank_test.cpp tests the
// steps.
#include <gtest/gtest.h>

#include <numeric>

#include "support/errors.h"
#include "train/meshes.h"

namespace octet::testing {
namespace {

// Each layer gathers K and V once in forward and once in backward, and once more if backward recomputes the layer. It also
// reduces the gradients of K and V. Nothing else is sent.
TEST_F(MeshTest, ContextSendsWhatItMust) {
  for (const nn::Checkpointing mode : {nn::Checkpointing::none, nn::Checkpointing::full}) {
    train::EngineOptions options = context_options("bf16");
    options.checkpointing = mode;
    const models::DecoderConfig& model = options.model;
    for (const Layout& layout : kContexts) {
      SCOPED_TRACE(text(layout));
      const int ranks = layout.mesh.size(Axis::context), steps = 2;
      const std::int64_t tokens = options.micro_batch_size * options.seq_len / ranks;
      const std::int64_t local = tokens * 2 * model.kv_heads * model.head_dim * static_cast<std::int64_t>(sizeof(BFloat16));
      const std::int64_t micro_batches = steps * Steps().micro_batches / layout.mesh.data_coordinates();
      const std::int64_t exchanges = micro_batches * model.layers * (mode == nn::Checkpointing::full ? 4 : 3);
      const RunState state = run_mesh(options, layout, {.count = steps});
      for (const comm::Traffic& sent : state.over_context) {
        EXPECT_EQ(sent.messages, exchanges * 2 * options.micro_batch_size) << "each half of each sequence by itself";
        EXPECT_EQ(sent.bytes, static_cast<double>(exchanges * (ranks - 1) * local));
      }
    }
  }
}

TEST_F(MeshTest, ContextRefusesAttentionInFp8) {
  train::EngineOptions options = context_options("fp8_delayed_attention");
  options.layout = {.mesh = Mesh({1, 1, 2, 1})};
  EXPECT_TRUE(contains(error_of(ExitCode::config, [&] { train::measure(options, DeviceKind::cpu); }),
                       "precision.attention = \"fp8\" with parallel.context = 2"));
}

// A sequence counts once, however many ranks hold it: in FP64, up to the order of sums.
TEST_F(MeshTest, RouterLossesAreThoseOfOneRank) {
  const train::EngineOptions options = mixture_options("fp64");
  train::Engine::RouterLosses one, of_evaluation;
  const auto run = [&](const Layout& layout, const auto& see) {
    on_engines(options, layout, [&](train::Engine& engine, const parallel::Groups& groups) {
      take(engine, {});
      const train::Engine::RouterLosses of_step = engine.router_losses(train::Engine::Routed::step);
      evaluate_a_row(engine);
      see(of_step, engine.router_losses(train::Engine::Routed::evaluation), groups);
    });
  };
  run(kAlone, [&](const auto& of_step, const auto& evaluated, const parallel::Groups&) {
    one = of_step;
    of_evaluation = evaluated;
  });
  EXPECT_GT(one.balance, 0.0);
  EXPECT_GT(one.z, 0.0);
  for (const Layout& layout :
       {Layout{.mesh = Mesh({1, 1, 2, 1})}, Layout{.mesh = Mesh({1, 2, 2, 1})}, Layout{.mesh = Mesh({1, 1, 4, 1})},
        Layout{.mesh = Mesh({1, 1, 2, 2})}, Layout{.mesh = Mesh({2, 1, 1, 1})}}) {
    SCOPED_TRACE(text(layout));
    run(layout, [&](const auto& of_step, const auto& evaluated, const parallel::Groups& groups) {
      EXPECT_NEAR(of_step.balance, one.balance, 1e-9 * one.balance);
      EXPECT_NEAR(of_step.z, one.z, 1e-9 * one.z);
      if (layout.mesh.data_coordinates() > 1) return;  // the last evaluation is that of this rank's rows
      EXPECT_NEAR(evaluated.balance, groups.context->rank() == 0 ? of_evaluation.balance : 0.0, 1e-9 * of_evaluation.balance);
    });
  }
}

// Whatever a mesh divides, each choice of a token counts once.
TEST_F(MeshTest, ExpertLoadsAreThoseOfOneRank) {
  train::EngineOptions options = mixture_options("fp64");
  options.model.layers = 3;
  options.model.dense_layers = {false, true, false};
  const auto loads_of = [&](const Layout& layout) {
    std::vector<std::vector<double>> all;
    std::mutex mutex;
    on_engines(options, layout, [&](train::Engine& engine, const parallel::Groups&) {
      take(engine, {.count = 2, .micro_batches = 4});
      const std::lock_guard lock(mutex);
      all.push_back(engine.expert_loads_of_step());
    });
    for (const std::vector<double>& one : all) EXPECT_EQ(one, all.front()) << "every rank knows them";
    return all.front();
  };
  const std::vector<double> one = loads_of(kAlone);
  ASSERT_EQ(one.size(), static_cast<std::size_t>(2 * options.model.experts));
  const auto choices = static_cast<double>(4 * options.micro_batch_size * options.seq_len * options.model.experts_per_token);
  for (const auto first : {one.begin(), one.begin() + static_cast<std::ptrdiff_t>(options.model.experts)})
    EXPECT_EQ(std::accumulate(first, first + static_cast<std::ptrdiff_t>(options.model.experts), 0.0), choices)
        << "of the last step";
  for (const Layout& layout : {Layout{.mesh = Mesh({1, 4, 1, 1}, 4)}, Layout{.mesh = Mesh({1, 2, 2, 1})},
                               Layout{.mesh = Mesh({2, 1, 1, 2})}, Layout{.mesh = Mesh({1, 2, 1, 1}, 1, {.count = 2})}}) {
    EXPECT_EQ(loads_of(layout), one) << text(layout);
  }
}

}  // namespace
}  // namespace octet::testing
