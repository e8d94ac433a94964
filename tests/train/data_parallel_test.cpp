// Data parallelism, ranks as threads: however many ranks share the micro-batches of a step and the parameters, it is the same
// step.
#include <gtest/gtest.h>

#include <cmath>

#include "octet/base/threads.h"
#include "octet/numerics/bounds.h"
#include "support/mesh_ranks.h"
#include "support/near.h"
#include "support/tiny_model.h"

namespace octet::testing {
namespace {

using parallel::Gradients;
using parallel::Layout;
using parallel::Mesh;
using parallel::Weights;

constexpr int kMicroBatches = 8;

// What all ranks hold together, put back into whole parameters.
struct State {
  std::vector<std::vector<double>> gradients;  // of the last step, by parameter
  std::vector<std::vector<std::uint8_t>> weights, scales;
  double loss = 0;
};
struct Sent {
  double shards = 0, replicas = 0;
};

Layout layout_of(int replicate, int shard, Weights weights = Weights::kept, Gradients gradients = Gradients::whole) {
  return {.mesh = Mesh({replicate, shard, 1, 1}), .weights = weights, .gradients = gradients};
}

std::string text(const Layout& layout) {
  return concat("replicate ", layout.mesh.size(parallel::Axis::replicate), " x shard ", layout.mesh.size(parallel::Axis::shard),
                layout.weights == Weights::kept ? ", weights kept" : ", weights resharded",
                layout.gradients == Gradients::whole ? ", gradients whole" : ", gradients sharded");
}

class DataParallel : public ::testing::TestWithParam<std::string> {
 protected:
  DataParallel() : options_(tiny_options(GetParam())) {
    set_num_threads(1);
    options_.recipe.amax_history_len = 4;
  }
  ~DataParallel() override { set_num_threads(available_cores()); }

  Tokens micro_batch(int step, int micro) const {
    return random_tokens(options_.seq_len * options_.micro_batch_size, options_.model.vocab,
                         static_cast<std::uint32_t>(step * kMicroBatches + micro));
  }
  // `first`, `first + every`, ... of the micro-batches of each step.
  void train(train::Engine& engine, int steps, int first, int every) const {
    for (int step = 1; step <= steps; ++step) {
      engine.zero_gradients(kMicroBatches / every);
      for (int micro = first; micro < kMicroBatches; micro += every) {
        engine.forward_backward(micro_batch(step, micro).batch(), nullptr);
      }
      engine.apply(1e-2, static_cast<std::uint32_t>(step));
    }
  }
  // Adds this rank's parts; what several ranks hold must be the same.
  static void collect(train::Engine& engine, State& state) {
    std::size_t i = 0;
    for (const parallel::Parameter& p : engine.model().parameters().parameters()) {
      if (state.gradients.size() <= i) {
        state.gradients.emplace_back(static_cast<std::size_t>(p.elements()), std::nan(""));
        state.weights.emplace_back(static_cast<std::size_t>(p.elements()) * size_of(p.primary().dtype));
      }
      const auto first = static_cast<std::size_t>(p.first_element);
      const std::vector<double> gradient = values_of(p.grad_part);
      for (std::size_t e = 0; e < gradient.size(); ++e) {
        double& place = state.gradients[i][first + e];
        EXPECT_TRUE(std::isnan(place) || place == gradient[e]) << p.spec.name << " element " << first + e;
        place = gradient[e];
      }
      const std::vector<std::uint8_t> weights = bytes_of_tensor(p.primary());
      std::copy(weights.begin(), weights.end(),
                state.weights[i].begin() + static_cast<std::ptrdiff_t>(first * size_of(p.primary().dtype)));
      ++i;
    }
    std::vector<std::vector<std::uint8_t>> scales;
    for (const auto& named : engine.model().scales().tensors()) scales.push_back(bytes_of_tensor(named.tensor));
    EXPECT_TRUE(state.scales.empty() || scales == state.scales);
    state.scales = scales;
    const kernels::StepScalars scalars = engine.optimizer().read(engine.queue());
    state.loss = scalars.loss_sum / scalars.token_count;
  }
  State alone(int steps) const {
    const auto engine = make_engine(options_);
    train(*engine, steps, 0, 1);
    State state;
    collect(*engine, state);
    return state;
  }
  State together(const Layout& layout, int steps, Sent* sent = nullptr) const {
    const int ranks = layout.mesh.ranks();
    State state;
    std::mutex mutex;
    ThreadStore store;
    run_ranks(ranks, [&](int rank) {
      const parallel::Groups groups = thread_groups(store, layout.mesh, rank);
      train::EngineOptions options = options_;
      options.layout = layout;
      options.rank = rank;
      train::Engine engine(options, DeviceKind::cpu, &groups);
      engine.model().parameters().initialise(engine.queue(), 7);
      engine.refresh();
      const Sent before{groups.shards->traffic().bytes, groups.replicas->traffic().bytes};
      train(engine, steps, rank, ranks);
      engine.settle_scales();
      if (sent && rank == 0)
        *sent = {groups.shards->traffic().bytes - before.shards, groups.replicas->traffic().bytes - before.replicas};
      EXPECT_EQ(engine.device().memory().total_peak, train::measure(options, DeviceKind::cpu).total());
      EXPECT_EQ(engine.any_rank(rank == ranks - 1), true);
      EXPECT_EQ(engine.any_rank(false), false);
      const std::lock_guard lock(mutex);
      collect(engine, state);
    });
    return state;
  }
  // The sum over micro-batches of the magnitude of each element of their gradients.
  std::vector<std::vector<double>> magnitudes() const {
    std::vector<std::vector<double>> result;
    for (int micro = 0; micro < kMicroBatches; ++micro) {
      const auto engine = make_engine(options_);
      engine->zero_gradients();
      engine->forward_backward(micro_batch(1, micro).batch(), nullptr);
      std::size_t i = 0;
      for (const parallel::Parameter& p : engine->model().parameters().parameters()) {
        const std::vector<double> g = values_of(p.grad);
        if (result.size() <= i) result.emplace_back(g.size());
        for (std::size_t e = 0; e < g.size(); ++e) result[i][e] += std::abs(g[e]);
        ++i;
      }
    }
    return result;
  }

  train::EngineOptions options_;
};

const std::vector<Layout>& layouts() {
  static const std::vector<Layout> all = {
      layout_of(2, 1),
      layout_of(4, 1),
      layout_of(1, 2),
      layout_of(1, 4, Weights::kept, Gradients::sharded),
      layout_of(1, 2, Weights::resharded, Gradients::whole),
      layout_of(1, 4, Weights::resharded, Gradients::sharded),
      layout_of(1, 8, Weights::resharded, Gradients::sharded),
      layout_of(2, 2),
      layout_of(2, 2, Weights::resharded, Gradients::sharded),
  };
  return all;
}

// A micro-batch gives the same gradient wherever it is, to the bit: its weights' codes are those of one rank. The sum of all is
// taken in another order. Each sum of n numbers is within n u of exact, measured by the sum of their magnitudes, which the
// gradients of the micro-batches alone tell.
TEST_P(DataParallel, TakesTheStepOfOne) {
  const State expected = alone(1);
  const std::vector<std::vector<double>> magnitude = magnitudes();
  const double unit = std::ldexp(1.0, -24);
  for (const Layout& layout : layouts()) {
    SCOPED_TRACE(text(layout));
    const State actual = together(layout, 1);
    EXPECT_NEAR(actual.loss, expected.loss, 1e-12 * expected.loss);
    EXPECT_TRUE(actual.scales == expected.scales) << "amaxes are maxima of the same numbers";
    for (std::size_t i = 0; i < expected.gradients.size(); ++i) {
      for (std::size_t e = 0; e < expected.gradients[i].size(); ++e) {
        ASSERT_LE(std::abs(actual.gradients[i][e] - expected.gradients[i][e]), 2 * kMicroBatches * unit * magnitude[i][e])
            << "parameter " << i << " element " << e;
      }
    }
  }
}

TEST_P(DataParallel, RepeatsToTheBit) {
  for (const Layout& layout : {layout_of(4, 1), layout_of(2, 2, Weights::resharded, Gradients::sharded)}) {
    SCOPED_TRACE(text(layout));
    const State first = together(layout, 5), second = together(layout, 5);
    EXPECT_TRUE(second.weights == first.weights);
    EXPECT_TRUE(second.scales == first.scales);
    EXPECT_NEAR(first.loss, alone(5).loss, 0.01 * first.loss);
  }
}

// Gradients cross the wire in another dtype than they are kept in: one rounding of each rank's sum, and one of the sum of all.
TEST_P(DataParallel, CrossesInTheDTypeAskedFor) {
  const State expected = alone(1);
  const std::vector<std::vector<double>> magnitude = magnitudes();
  for (const auto& [kept, crosses] : {std::pair(DType::f32, DType::bf16), std::pair(DType::bf16, DType::f32)}) {
    options_.grad_dtype = kept;
    for (Layout layout : {layout_of(2, 2), layout_of(1, 4, Weights::resharded, Gradients::sharded), layout_of(2, 1)}) {
      layout.reduce = crosses;
      SCOPED_TRACE(concat(text(layout), ", kept in ", name_of(kept)));
      const State actual = together(layout, 1);
      // At most eight roundings to BF16 on the way of a number, of sums no larger than that of magnitudes.
      for (std::size_t i = 0; i < expected.gradients.size(); ++i) {
        for (std::size_t e = 0; e < expected.gradients[i].size(); ++e) {
          ASSERT_LE(std::abs(actual.gradients[i][e] - expected.gradients[i][e]), gamma(8, kUnitRoundoffBf16) * magnitude[i][e])
              << "parameter " << i << " element " << e;
        }
      }
    }
  }
}

// Whatever a unit is made of and whenever it is gathered and reduced, the sums are the same.
TEST_P(DataParallel, IsTheSameInEveryLayoutOfAMesh) {
  for (const auto& [replicate, shard] : {std::pair(1, 4), std::pair(2, 2)}) {
    const State kept = together(layout_of(replicate, shard), 3);
    const State resharded = together(layout_of(replicate, shard, Weights::resharded), 3);
    EXPECT_TRUE(resharded.weights == kept.weights);
    EXPECT_TRUE(resharded.gradients == kept.gradients);
  }
}

TEST_P(DataParallel, RecomputesWithTheSameWeights) {
  const Layout layout = layout_of(1, 2, Weights::resharded, Gradients::sharded);
  const State expected = together(layout, 2);
  for (const nn::Checkpointing checkpointing : {nn::Checkpointing::selective, nn::Checkpointing::full}) {
    options_.checkpointing = checkpointing;
    const State actual = together(layout, 2);
    EXPECT_TRUE(actual.weights == expected.weights);
    EXPECT_TRUE(actual.gradients == expected.gradients);
  }
}

INSTANTIATE_TEST_SUITE_P(Recipes, DataParallel,
                         ::testing::Values("fp32", "bf16", "fp8_delayed", "fp8_current", "fp8_rowwise", "fp8_block", "mxfp8"));

// 16-bit states: BF16 weights and moments, stochastic rounding.
class DataParallelNarrow : public DataParallel {
 protected:
  DataParallelNarrow() {
    options_.master_weights = false;
    options_.moments_dtype = DType::bf16;
    options_.optimizer.max_grad_norm = 0;
  }
};

// A step of one micro-batch on every rank alike, scaled so that sums are exact: the same gradients on every mesh give the same
// bits.
TEST_P(DataParallelNarrow, RoundsTheSameOnEveryMesh) {
  const State expected = alone(1);
  for (const Layout& layout : layouts()) {
    SCOPED_TRACE(text(layout));
    const State actual = together(layout, 1);
    // Where the sum came out the same, so did the weight.
    for (std::size_t i = 0; i < expected.weights.size(); ++i) {
      for (std::size_t e = 0; e < expected.gradients[i].size(); ++e) {
        if (actual.gradients[i][e] != expected.gradients[i][e]) continue;
        ASSERT_EQ(actual.weights[i][2 * e], expected.weights[i][2 * e]) << "parameter " << i << " element " << e;
        ASSERT_EQ(actual.weights[i][2 * e + 1], expected.weights[i][2 * e + 1]);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Recipes, DataParallelNarrow, ::testing::Values("bf16", "fp8_delayed", "fp8_block"));

}  // namespace
}  // namespace octet::testing
