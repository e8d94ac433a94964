// Data parallelism with ranks that are threads. The step must be the same, however many ranks share its micro-batches and the
// parameters.
#include <gtest/gtest.h>

#include "support/bounds.h"
#include "support/shard_traffic.h"
#include "train/meshes.h"

namespace octet::testing {
namespace {

constexpr int kMicroBatches = 8;

Layout layout_of(int replicate, int shard, Weights weights = Weights::kept, Gradients gradients = Gradients::whole) {
  return {.mesh = Mesh({replicate, shard, 1, 1}), .weights = weights, .gradients = gradients};
}

class DataParallel : public MeshTest, public ::testing::WithParamInterface<std::string> {
 protected:
  DataParallel() : options_(context_options(GetParam())) {}

  static Steps steps_of(int count) { return {.count = count, .micro_batches = kMicroBatches, .learning_rate = 1e-2}; }
  RunState run(const Layout& layout, int steps) const { return run_mesh(options_, layout, steps_of(steps)); }
  RunState alone(int steps) const { return run({}, steps); }

  train::EngineOptions options_;
};

std::size_t gradient_bytes(const train::EngineOptions& options) {
  return train::measure(options, DeviceKind::cpu).bytes[static_cast<std::size_t>(MemoryCategory::gradients)];
}

const std::vector<Layout>& data_layouts() {
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

// The gradient of a micro-batch has the same bits on every rank, because the codes of the weights are those of one rank. Only the
// sum over micro-batches is taken in another order. A sum of n numbers errs by at most n u times the sum of their magnitudes,
// which gradient_magnitudes() computes.
TEST_P(DataParallel, TakesTheStepOfOne) {
  const RunState expected = alone(1);
  const ByName<double> magnitudes = gradient_magnitudes(options_, steps_of(1));
  for (const Layout& layout : data_layouts()) {
    SCOPED_TRACE(text(layout));
    const RunState actual = run(layout, 1);
    expect_same_loss(actual, expected, kMicroBatches * options_.micro_batch_size * options_.seq_len);
    EXPECT_TRUE(actual.scales == expected.scales) << "amaxes are maxima of the same numbers";
    expect_near_gradients(actual, expected, magnitudes, 2 * kMicroBatches * kUnitRoundoffF32);
  }
}

// Gradients are sent in another dtype than they are kept in. Each rank's sum is rounded once, and so is the sum over all ranks.
// On its way, a number is rounded to BF16 at most eight times, each time as part of a sum that is at most the sum of magnitudes.
TEST_P(DataParallel, CrossesInTheDTypeAskedFor) {
  const RunState expected = alone(1);
  const ByName<double> magnitudes = gradient_magnitudes(options_, steps_of(1));
  for (const auto& [kept, crosses] : {std::pair(DType::f32, DType::bf16), std::pair(DType::bf16, DType::f32)}) {
    options_.storage.grad = kept;
    for (Layout layout : {layout_of(2, 2), layout_of(1, 4, Weights::resharded, Gradients::sharded), layout_of(2, 1)}) {
      layout.reduce = crosses;
      SCOPED_TRACE(concat(text(layout), ", kept in ", name_of(kept)));
      expect_near_gradients(run(layout, 1), expected, magnitudes, gamma(8, kUnitRoundoffBf16));
    }
  }
}

// Counts codes or values, gradients, sums and amaxes over groups that really send them.
TEST_P(DataParallel, SendsWhatItMust) {
  const int steps = 2;
  options_.model.layers = 4;
  for (const Layout& layout : {layout_of(1, 2), layout_of(1, 4, Weights::resharded, Gradients::sharded),
                               layout_of(2, 2, Weights::kept, Gradients::sharded)}) {
    SCOPED_TRACE(text(layout));
    train::EngineOptions options = options_;
    options.layout = layout;
    const ShardTraffic of_step = shard_traffic(options, kMicroBatches / layout.mesh.data_coordinates());
    on_engines(options_, layout, [&](train::Engine& engine, const parallel::Groups& groups) {
      const comm::Traffic before = groups.shards->traffic();
      take(engine, steps_of(steps));
      double bytes = before.bytes;
      std::int64_t messages = before.messages;
      for (const comm::Traffic& traffic : {of_step.all_gather, of_step.reduce_scatter, of_step.all_reduce}) {
        bytes += steps * traffic.bytes;
        messages += steps * traffic.messages;
      }
      EXPECT_EQ(groups.shards->traffic().bytes, bytes) << "rank " << engine.options().rank;
      EXPECT_EQ(groups.shards->traffic().messages, messages) << "rank " << engine.options().rank;
    });
  }
}

// Leaving received parts as they are also takes half the memory.
TEST_P(DataParallel, PartsOfOneMicroBatchStayAsTheyCame) {
  for (Layout layout : {layout_of(1, kMicroBatches, Weights::kept, Gradients::sharded),
                        layout_of(2, kMicroBatches / 2, Weights::resharded, Gradients::sharded)}) {
    SCOPED_TRACE(text(layout));
    layout.reduce = DType::bf16;
    expect_parts_may_stay_as_they_came(layout, [&](const Layout& which) { return run(which, 2); });
    train::EngineOptions options = options_;
    options.layout = layout;
    const std::size_t bytes_added = gradient_bytes(options);
    options.layout.accumulates = false;
    EXPECT_LT(gradient_bytes(options), bytes_added);
  }
}

INSTANTIATE_TEST_SUITE_P(Recipes, DataParallel, ::testing::ValuesIn(all_precisions()), [](const auto& info) { return info.param; });

// 16-bit states: BF16 weights and moments with stochastic rounding.
class DataParallelNarrow : public DataParallel {
 protected:
  DataParallelNarrow() {
    options_.storage.master_weights = false;
    options_.storage.moments = DType::bf16;
    options_.optimizer.max_grad_norm = 0;
  }
};

// If an element's gradient is the same, so is its new weight.
TEST_P(DataParallelNarrow, RoundsTheSameOnEveryMesh) {
  const RunState expected = alone(1);
  for (const Layout& layout : data_layouts()) {
    SCOPED_TRACE(text(layout));
    for (const auto& [name, same] : expect_weights_of_same_gradients(run(layout, 1), expected)) {
      EXPECT_GT(same, 0u) << name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Recipes, DataParallelNarrow, ::testing::Values("bf16", "fp8_delayed", "fp8_block"));

}  // namespace
}  // namespace octet::testing
