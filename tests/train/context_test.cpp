// Counts what context parallelism sends, and what routers count, with ranks that are threads. step_of_one_rank_test.cpp tests the
// steps.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "support/errors.h"
#include "support/grad_check.h"
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

// If only some tokens have targets, a sequence adds the router's mean losses over all its tokens as often as it has targets. The
// figures that a step reports count all tokens. Biases choose the experts, because a choice that changes with the weights has no
// derivative.
TEST_F(MeshTest, RouterLossesWeighAsTheirTokensCount) {
  train::EngineOptions options = mixture_options("fp64");
  options.model.router_balance = 0.5;
  options.model.router_z = 0.3;
  options.model.router_bias_rate = 0;
  const auto engine = make_engine(options);
  const auto& parameters = engine->model().parameters().parameters();
  for (const parallel::Parameter& p : parameters) {
    if (p.spec.tracked) p.value.as<float>()[1] = p.value.as<float>()[3] = 10;
  }
  const auto length = static_cast<std::size_t>(options.seq_len);
  std::vector<Tokens> micro_batches;
  for (const std::array<std::size_t, 2>& kept : {std::array<std::size_t, 2>{5, 24}, {0, 11}}) {
    Tokens& tokens = micro_batches.emplace_back(
        random_tokens(2 * options.seq_len, options.model.vocab, static_cast<std::uint32_t>(micro_batches.size())));
    for (std::size_t i = 0; i < 2 * length; ++i) {
      if (i % length >= kept[i / length]) tokens.targets[i] = kernels::kIgnoredTarget;
    }
  }
  const auto weighed = [&](const train::Engine::RouterLosses& losses) {
    return (options.model.router_balance * losses.balance + options.model.router_z * losses.z) /
           static_cast<double>(options.model.layers);
  };
  double all_tokens = 0, evaluated = 0, expected = 0;
  const auto f = [&] {
    double sum = all_tokens = evaluated = expected = 0;
    for (const Tokens& tokens : micro_batches) {
      sum += engine->evaluate(tokens.tokens, tokens.targets)[0];
      evaluated += weighed(engine->router_losses(train::Engine::Routed::evaluation));
      for (std::size_t first = 0; first < tokens.tokens.size(); first += length) {
        const std::span<const std::int32_t> row(&tokens.tokens[first], length), targets(&tokens.targets[first], length);
        engine->evaluate(row, row);  // all its tokens count
        const double losses = weighed(engine->router_losses(train::Engine::Routed::evaluation));
        all_tokens += losses;
        const std::ptrdiff_t masked = std::count(targets.begin(), targets.end(), kernels::kIgnoredTarget);
        expected += losses * static_cast<double>(std::ssize(targets) - masked) / static_cast<double>(length);
      }
    }
    return sum + expected;
  };
  engine->begin_step(2);
  for (const Tokens& tokens : micro_batches) engine->forward_backward(tokens.batch(), nullptr);
  const double of_step = weighed(engine->router_losses(train::Engine::Routed::step));
  f();
  EXPECT_NEAR(of_step, all_tokens, 1e-9 * all_tokens);
  EXPECT_NEAR(evaluated, expected, 1e-9 * expected);
  for (const parallel::Parameter& p : parameters) {
    const bool unchosen = contains(p.spec.name, ".experts.0.") || contains(p.spec.name, ".experts.2.");
    if (p.spec.tracked || unchosen) continue;
    const std::vector<double> gradient(p.grad.as<double>(), p.grad.as<double>() + p.elements());
    EXPECT_TRUE(gradient_agrees({.name = p.spec.name,
                                 .x = p.value.as<double>(),
                                 .gradient = gradient.data(),
                                 .count = p.elements(),
                                 .f = f,
                                 .samples = 4,
                                 .noise = 1024 * std::numeric_limits<double>::epsilon()}));
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
