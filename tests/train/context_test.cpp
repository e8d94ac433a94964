// Context parallelism, ranks as threads: however many ranks hold the parts of a sequence, it is the same step.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <map>

#include "octet/base/threads.h"
#include "octet/numerics/bounds.h"
#include "support/mesh_ranks.h"
#include "support/near.h"
#include "support/tiny_model.h"

namespace octet::testing {
namespace {

using Sizes = std::array<int, parallel::kAxes>;
constexpr Sizes kAlone = {1, 1, 1, 1};
constexpr Sizes kMeshes[] = {{1, 1, 2, 1}, {1, 1, 4, 1}, {2, 1, 2, 1}};
constexpr int kMicroBatches = 2;  // of a step

std::string name_of_mesh(const Sizes& sizes) { return concat("replicate ", sizes[0], ", context ", sizes[2]); }

struct State {
  std::vector<std::string> names;                      // of parameters
  std::vector<std::vector<double>> values, gradients;  // before the first step; of the last
  std::vector<std::vector<std::uint8_t>> weights;
  struct Part {
    std::size_t first, elements, width;  // of what this rank holds, of the whole, in bytes of weights
  };
  std::vector<Part> parts;
  std::map<std::string, std::vector<std::uint8_t>> scales;
  std::vector<double> losses;  // by step
  std::array<double, 2> evaluation{};
  comm::Traffic context;  // of the steps
};

class Context : public ::testing::Test {
 protected:
  Context() { set_num_threads(1); }
  ~Context() override { set_num_threads(available_cores()); }

  static train::EngineOptions options_of(const std::string& recipe) {
    train::EngineOptions options = tiny_options(recipe);
    options.recipe.amax_history_len = 4;
    return options;
  }
  // Steps repeat after the third, so that there is something to learn.
  static Tokens micro_batch(const train::EngineOptions& options, int step, int micro) {
    return random_tokens(options.seq_len * options.micro_batch_size, options.model.vocab,
                         static_cast<std::uint32_t>(step % 3 * kMicroBatches + micro));
  }

  // `values`, where given, replace the random weights.
  State run(const train::EngineOptions& of_all, const Sizes& sizes, int rank, int steps, const parallel::Groups* groups,
            const std::vector<std::vector<double>>& values = {}) const {
    train::EngineOptions options = of_all;
    options.layout.mesh = parallel::Mesh(sizes);
    const parallel::Mesh& mesh = options.layout.mesh;
    options.rank = rank;
    train::Engine engine(options, DeviceKind::cpu, groups);
    auto& parameters = engine.model().parameters();
    parameters.initialise(engine.queue(), 7);
    for (std::size_t i = 0; i < values.size(); ++i) {
      std::copy(values[i].begin(), values[i].end(), parameters.parameters()[i].value.as<double>());
    }
    engine.refresh();
    State state;
    for (const parallel::Parameter& p : parameters.parameters()) {
      state.names.push_back(p.spec.name);
      state.values.push_back(values_of(p.value ? p.value : p.primary()));
    }
    for (int step = 1; step <= steps; ++step) {
      engine.zero_gradients(kMicroBatches / mesh.data_coordinates());
      for (int micro = mesh.data_coordinate(rank); micro < kMicroBatches; micro += mesh.data_coordinates()) {
        engine.forward_backward(micro_batch(options, step, micro).batch(), nullptr);
      }
      engine.apply(learning_rate, static_cast<std::uint32_t>(step));
      const kernels::StepScalars scalars = engine.optimizer().read(engine.queue());
      state.losses.push_back(scalars.loss_sum / scalars.token_count);
    }
    engine.settle_scales();
    for (const parallel::Parameter& p : parameters.parameters()) {
      state.parts.push_back(
          {static_cast<std::size_t>(p.first_element), static_cast<std::size_t>(p.elements()), size_of(p.primary().dtype)});
      state.gradients.push_back(values_of(p.grad_part));
      state.weights.push_back(bytes_of_tensor(p.primary()));
    }
    for (const auto& [name, tensor] : engine.model().scales().tensors()) state.scales[name] = bytes_of_tensor(tensor);
    if (groups) state.context = groups->context->traffic();
    const Tokens one = random_tokens(options.seq_len, options.model.vocab, 77);  // a row less than a micro-batch
    state.evaluation = engine.evaluate(one.tokens, one.targets);
    if (groups && groups->context->size() > 1) {
      EXPECT_THROW(engine.logits(one.tokens), Error);
    }
    EXPECT_EQ(engine.device().memory().total_peak, train::measure(options, DeviceKind::cpu).total()) << "rank " << rank;
    return state;
  }
  State alone(const train::EngineOptions& options, int steps, const std::vector<std::vector<double>>& values = {}) const {
    return run(options, kAlone, 0, steps, nullptr, values);
  }
  std::vector<State> together(const train::EngineOptions& options, const Sizes& sizes, int steps) const {
    const parallel::Mesh mesh(sizes);
    std::vector<State> states(static_cast<std::size_t>(mesh.ranks()));
    ThreadStore store;
    run_ranks(mesh.ranks(), [&](int rank) {
      const parallel::Groups groups = thread_groups(store, mesh, rank);
      states[static_cast<std::size_t>(rank)] = run(options, sizes, rank, steps, &groups);
    });
    put_together(states);
    return states;
  }
  // The parts of all ranks become the whole on each. What several of them hold must be the same.
  static void put_together(std::vector<State>& states) {
    State whole = states[0];
    for (std::size_t i = 0; i < whole.parts.size(); ++i) {
      const auto [first, elements, width] = whole.parts[i];
      whole.gradients[i].assign(elements, std::nan(""));
      whole.weights[i].assign(elements * width, 0);
      for (const State& state : states) {
        const std::size_t begin = state.parts[i].first;
        for (std::size_t e = 0; e < state.gradients[i].size(); ++e) {
          double& place = whole.gradients[i][begin + e];
          EXPECT_TRUE(std::isnan(place) || place == state.gradients[i][e]) << whole.names[i];
          place = state.gradients[i][e];
        }
        std::copy(state.weights[i].begin(), state.weights[i].end(),
                  whole.weights[i].begin() + static_cast<std::ptrdiff_t>(begin * width));
      }
    }
    for (State& state : states) {
      state.gradients = whole.gradients;
      state.weights = whole.weights;
    }
  }

  double learning_rate = 1e-3;
};

// In FP64 what differs is the order of sums, a few thousand terms along the longest path from a token to a gradient, each within
// a roundoff of the magnitudes it adds up: gamma(2^12), relative to the norm of what comes out, whose terms cancel by less
// than 2.
TEST_F(Context, TakesTheStepOfOneRank) {
  const double bound = 2 * gamma(4096, kUnitRoundoffF64);
  for (const bool long_batch : {false, true}) {
    train::EngineOptions options = options_of("fp64");
    if (long_batch) options.micro_batch_size = 3;
    const State expected = alone(options, 1);
    for (const Sizes& mesh : kMeshes) {
      for (const State& actual : together(options, mesh, 1)) {
        EXPECT_NEAR(actual.losses[0], expected.losses[0], bound * expected.losses[0]) << name_of_mesh(mesh);
        for (std::size_t i = 0; i < expected.gradients.size(); ++i) {
          EXPECT_TRUE(near_norm(actual.gradients[i], expected.gradients[i], bound))
              << expected.names[i] << ", " << name_of_mesh(mesh);
        }
      }
    }
  }
}

// The truth is the same step in FP64 from the same weights. A run on several ranks rounds wherever one rank does, and the
// gradients of K and V up to three times more (a range's share, their sum, the sum over ranks): on average it is off by less than
// twice as much, whatever the parameter.
TEST_F(Context, RoundsHardlyMoreThanOneRank) {
  for (const std::string recipe : {"fp32", "bf16"}) {
    const double unit = recipe == "fp32" ? kUnitRoundoffF32 : kUnitRoundoffBf16;
    const train::EngineOptions options = options_of(recipe);
    const State one = alone(options, 1), truth = alone(options_of("fp64"), 1, one.values);
    for (const Sizes& mesh : kMeshes) {
      const State actual = together(options, mesh, 1)[0];
      // The residual stream is rounded about ten times a layer, logits and losses a few times more.
      EXPECT_NEAR(actual.losses[0], truth.losses[0], gamma(24, unit) * truth.losses[0]) << recipe << ", " << name_of_mesh(mesh);
      for (std::size_t i = 0; i < truth.gradients.size(); ++i) {
        EXPECT_TRUE(
            near_norm(actual.gradients[i], truth.gradients[i], 2 * relative_frobenius(one.gradients[i], truth.gradients[i])))
            << recipe << ", " << truth.names[i] << ", " << name_of_mesh(mesh);
      }
    }
  }
}

// Every rank has the largest amaxes of all, so all cast alike; from the operands that no sum in another order has touched, the
// weights and the input of the first linear, the scales of one rank follow to the bit.
TEST_F(Context, ScalesAreThoseOfOneRank) {
  learning_rate = 0;  // weights stay equal to the bit
  const train::EngineOptions options = options_of("fp8_delayed");
  const State one = alone(options, 1);
  for (const Sizes& mesh : kMeshes) {
    const std::vector<State> ranks = together(options, mesh, 1);
    for (const State& state : ranks) EXPECT_TRUE(state.scales == ranks[0].scales) << name_of_mesh(mesh);
    int compared = 0;
    for (const auto& [name, bytes] : one.scales) {
      if (name.find(".w.") == std::string::npos && name.find("layers.0.self_attn.q_proj.fused.x.") == std::string::npos) continue;
      EXPECT_EQ(ranks[0].scales.at(name), bytes) << name << ", " << name_of_mesh(mesh);
      ++compared;
    }
    EXPECT_EQ(compared, 2 * (2 * 4 + 1));  // scale and history of four weights a layer, and of one input
  }
}

TEST_F(Context, EvaluatesAsOneRankOnAllRanks) {
  const double bound = 2 * gamma(4096, kUnitRoundoffF64);
  const train::EngineOptions options = options_of("fp64");
  const State one = alone(options, 0);
  for (const Sizes& mesh : kMeshes) {
    const std::vector<State> ranks = together(options, mesh, 0);
    for (const State& state : ranks) {
      EXPECT_EQ(state.evaluation, ranks[0].evaluation);
      EXPECT_NEAR(state.evaluation[0], one.evaluation[0], bound * one.evaluation[0]);
      EXPECT_EQ(state.evaluation[1], one.evaluation[1]);
    }
  }
}

// K and V of a layer once forward (twice where backward computes it again), once backward, and their gradients; nothing else.
TEST_F(Context, SendsWhatItMust) {
  for (const nn::Checkpointing mode : {nn::Checkpointing::none, nn::Checkpointing::full}) {
    train::EngineOptions options = options_of("bf16");
    options.checkpointing = mode;
    const models::DecoderConfig& model = options.model;
    for (const Sizes& mesh : kMeshes) {
      const int ranks = mesh[2], steps = 2;
      const std::int64_t tokens = options.micro_batch_size * options.seq_len / ranks;
      const std::int64_t local = tokens * 2 * model.kv_heads * model.head_dim * static_cast<std::int64_t>(sizeof(BFloat16));
      const std::int64_t messages = steps * kMicroBatches / mesh[0] * model.layers * (mode == nn::Checkpointing::full ? 4 : 3);
      for (const State& state : together(options, mesh, steps)) {
        EXPECT_EQ(state.context.messages, messages) << name_of_mesh(mesh);
        EXPECT_EQ(state.context.bytes, static_cast<double>(messages * (ranks - 1) * local)) << name_of_mesh(mesh);
      }
    }
  }
}

class ContextRecipes : public Context, public ::testing::WithParamInterface<std::string> {};

// The same mesh, on every rank, whatever backward computes again.
TEST_P(ContextRecipes, RepeatsToTheBit) {
  train::EngineOptions options = options_of(GetParam());
  const auto run_and_compare = [&](const Sizes& mesh, const State& first) {
    for (const State& state : together(options, mesh, 3)) {
      EXPECT_TRUE(state.weights == first.weights) << name_of_mesh(mesh);
      EXPECT_TRUE(state.scales == first.scales) << name_of_mesh(mesh);
      EXPECT_EQ(state.losses, first.losses) << name_of_mesh(mesh);
    }
  };
  run_and_compare(kMeshes[2], together(options, kMeshes[2], 3)[0]);
  const State first = together(options, kMeshes[0], 3)[0];
  for (const nn::Checkpointing mode : {nn::Checkpointing::none, nn::Checkpointing::selective, nn::Checkpointing::full}) {
    options.checkpointing = mode;
    run_and_compare(kMeshes[0], first);
  }
}

// Scales per tensor, row or block are those of a rank's own operands, so codes differ; the curve does not.
TEST_P(ContextRecipes, LearnsAsOneRank) {
  train::EngineOptions options = options_of(GetParam());
  options.model.init_std = 0.1;  // with weights of 0.2, FP8's rounding alone parts two runs by more than 1 %
  const State one = alone(options, 20);
  EXPECT_LT(one.losses.back(), 0.9 * one.losses.front()) << "a curve that goes nowhere tells nothing";
  for (const Sizes& mesh : {kMeshes[0], kMeshes[1]}) {
    const State actual = together(options, mesh, 20)[0];
    for (std::size_t step = 0; step < one.losses.size(); ++step) {
      EXPECT_NEAR(actual.losses[step], one.losses[step], 0.01 * one.losses[step]) << name_of_mesh(mesh) << ", step " << step + 1;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Recipes, ContextRecipes,
                         ::testing::Values("fp32", "bf16", "fp8_delayed", "fp8_current", "fp8_rowwise", "fp8_block", "mxfp8"));

}  // namespace
}  // namespace octet::testing
