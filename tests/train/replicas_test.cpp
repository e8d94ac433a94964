// Data parallelism, ranks as threads: however many ranks share the micro-batches of a step, it is the same step.
#include <gtest/gtest.h>

#include <cmath>

#include "octet/base/threads.h"
#include "support/mesh_ranks.h"
#include "support/near.h"
#include "support/tiny_model.h"

namespace octet::testing {
namespace {

constexpr int kMicroBatches = 4;

struct State {
  std::vector<std::vector<double>> gradients;  // of the last step, by parameter
  std::vector<std::vector<std::uint8_t>> weights, scales;
  double loss = 0, bytes_sent = 0;
};

State state_of(train::Engine& engine) {
  State state;
  for (const parallel::Parameter& p : engine.model().parameters().parameters()) {
    state.gradients.push_back(values_of(p.grad));
    state.weights.push_back(bytes_of_tensor(p.primary()));
  }
  for (const auto& named : engine.model().scales().tensors()) state.scales.push_back(bytes_of_tensor(named.tensor));
  const kernels::StepScalars scalars = engine.optimizer().read(engine.queue());
  state.loss = scalars.loss_sum / scalars.token_count;
  return state;
}

class Replicas : public ::testing::TestWithParam<std::string> {
 protected:
  Replicas() : options_(tiny_options(GetParam())) {
    set_num_threads(1);
    options_.recipe.amax_history_len = 4;
  }
  ~Replicas() override { set_num_threads(available_cores()); }

  Tokens micro_batch(int step, int micro) const {
    return random_tokens(options_.seq_len * options_.micro_batch_size, options_.model.vocab,
                         static_cast<std::uint32_t>(step * kMicroBatches + micro));
  }
  // `first`, `first + every`, ... of the micro-batches of each step.
  void train(train::Engine& engine, int steps, int first, int every) const {
    for (int step = 1; step <= steps; ++step) {
      engine.zero_gradients();
      for (int micro = first; micro < kMicroBatches; micro += every) {
        engine.forward_backward(micro_batch(step, micro).batch(), nullptr);
      }
      engine.apply(1e-2, static_cast<std::uint32_t>(step));
    }
  }
  State alone(int steps) const {
    const auto engine = make_engine(options_);
    train(*engine, steps, 0, 1);
    return state_of(*engine);
  }
  std::vector<State> together(int ranks, int steps) const {
    std::vector<State> states(static_cast<std::size_t>(ranks));
    ThreadStore store;
    run_ranks(ranks, [&](int rank) {
      const parallel::Mesh mesh({ranks, 1, 1, 1});
      const parallel::Groups groups = thread_groups(store, mesh, rank);
      train::EngineOptions options = options_;
      options.mesh = mesh;
      options.rank = rank;
      train::Engine engine(options, DeviceKind::cpu, &groups);
      engine.model().parameters().initialise(engine.queue(), 7);
      engine.refresh();
      train(engine, steps, rank, ranks);
      states[static_cast<std::size_t>(rank)] = state_of(engine);
      states[static_cast<std::size_t>(rank)].bytes_sent = groups.replicas->traffic().bytes;
      EXPECT_EQ(engine.device().memory().total_peak, train::measure(options, DeviceKind::cpu).total());
      EXPECT_EQ(engine.any_rank(rank == ranks - 1), true);
      EXPECT_EQ(engine.any_rank(false), false);
    });
    return states;
  }

  train::EngineOptions options_;
};

// A micro-batch gives the same gradient wherever it is; the sum of all is taken in another order. Each sum of n numbers is
// within n u of exact, measured by the sum of their magnitudes, which the gradients of the micro-batches alone tell.
TEST_P(Replicas, TakeTheStepOfOne) {
  const State expected = alone(1);
  std::vector<std::vector<double>> magnitudes;
  for (int micro = 0; micro < kMicroBatches; ++micro) {
    const auto engine = make_engine(options_);
    engine->zero_gradients();
    engine->forward_backward(micro_batch(1, micro).batch(), nullptr);
    std::size_t i = 0;
    for (const parallel::Parameter& p : engine->model().parameters().parameters()) {
      const std::vector<double> g = values_of(p.grad);
      if (magnitudes.size() <= i) magnitudes.emplace_back(g.size());
      for (std::size_t e = 0; e < g.size(); ++e) magnitudes[i][e] += std::abs(g[e]);
      ++i;
    }
  }
  const double unit = std::ldexp(1.0, -24);
  for (const int ranks : {2, 4}) {
    for (const State& actual : together(ranks, 1)) {
      EXPECT_NEAR(actual.loss, expected.loss, 1e-12 * expected.loss);
      EXPECT_EQ(actual.scales, expected.scales) << "amaxes are maxima of the same numbers";
      for (std::size_t i = 0; i < expected.gradients.size(); ++i) {
        for (std::size_t e = 0; e < expected.gradients[i].size(); ++e) {
          ASSERT_LE(std::abs(actual.gradients[i][e] - expected.gradients[i][e]), 2 * kMicroBatches * unit * magnitudes[i][e])
              << "parameter " << i << " element " << e << " on " << ranks << " ranks";
        }
      }
    }
  }
}

TEST_P(Replicas, StayEqualToTheBitAndRepeat) {
  const std::vector<State> first = together(4, 5), second = together(4, 5);
  for (const State& state : first) {
    EXPECT_EQ(state.weights, first[0].weights);
    EXPECT_EQ(state.scales, first[0].scales);
  }
  EXPECT_EQ(second[0].weights, first[0].weights);
  EXPECT_NEAR(first[0].loss, alone(5).loss, 0.01 * first[0].loss);
}

// Every gradient once a step, the sum and number of losses (2 F64), and an amax (F32) for each delayed scale.
TEST_P(Replicas, SendWhatTheyMust) {
  const auto engine = make_engine(options_);
  double numbers = 2 * 8;
  for (const parallel::Parameter& p : engine->model().parameters().parameters()) numbers += static_cast<double>(p.grad.bytes());
  numbers += 4 * static_cast<double>(engine->model().scales().tensors().size()) / 2;  // a scale and a history each
  for (const int ranks : {2, 4}) {
    for (const State& state : together(ranks, 3)) EXPECT_DOUBLE_EQ(state.bytes_sent, 3 * numbers * 2 * (ranks - 1) / ranks);
  }
}

INSTANTIATE_TEST_SUITE_P(Recipes, Replicas,
                         ::testing::Values("fp32", "bf16", "fp8_delayed", "fp8_current", "fp8_rowwise", "fp8_block", "mxfp8"));

}  // namespace
}  // namespace octet::testing
