// With activation_checkpoint.layers the first layers compute everything again and the others keep more. The bits are those of any
// other checkpointing, and each layer that keeps more takes more memory. The first one that computes everything again saves
// nothing, because it then needs room for all that it makes.
#include <gtest/gtest.h>

#include "train/meshes.h"

namespace octet::testing {
namespace {

class RecomputedLayers : public MeshTest {
 protected:
  static void expect_same_bits_for_any_number(train::EngineOptions options, const Layout& layout, int micro_batches) {
    options.model.layers = 4;
    options.optimizer.max_grad_norm = 0;
    const Steps steps{.count = 2, .micro_batches = micro_batches * layout.mesh.data_coordinates()};
    const RunState expected = run_mesh(options, layout, steps);
    options.checkpointing = nn::Checkpointing::full;
    for (const int layers : {0, 1, 3, 4}) {
      SCOPED_TRACE(concat(layers, " layers, ", text(layout)));
      options.full_blocks = layers;
      expect_same_bits(run_mesh(options, layout, steps), expected);
    }
  }
};

TEST_F(RecomputedLayers, GiveTheSameBits) {
  Layout shards{.mesh = Mesh({1, 2, 1, 1}), .weights = Weights::resharded, .gradients = Gradients::sharded};
  Layout stages{.mesh = Mesh({1, 1, 1, 1}, 1, {.count = 2})}, chunks{.mesh = Mesh({1, 1, 1, 1}, 1, {.count = 2, .chunks = 2})};
  for (const std::string recipe :
       {"bf16", "fp8_delayed", "fp8_delayed_attention", "fp8_delayed_attention_forward", "fp8_rowwise"}) {
    SCOPED_TRACE(recipe);
    expect_same_bits_for_any_number(context_options(recipe), {}, 2);
    expect_same_bits_for_any_number(context_options(recipe), shards, 1);
  }
  expect_same_bits_for_any_number(context_options("fp8_delayed"), stages, 3);
  expect_same_bits_for_any_number(context_options("fp8_delayed"), chunks, 2);
  expect_same_bits_for_any_number(mixture_options("fp8_delayed"), shards, 2);
}

TEST_F(RecomputedLayers, TakeTheMemoryBetweenFullAndSelective) {
  train::EngineOptions options = tiny_options("fp8_delayed");
  options.model.layers = 5;
  options.checkpointing = nn::Checkpointing::selective;
  const std::uint64_t selective = train::measure(options, DeviceKind::cpu).total();
  options.checkpointing = nn::Checkpointing::full;
  const std::uint64_t full = train::measure(options, DeviceKind::cpu).total();
  std::uint64_t before = 0;
  for (int layers = 0; layers <= 5; ++layers) {
    options.full_blocks = layers;
    const auto engine = make_engine(options);
    engine->forward_backward(random_tokens(options.seq_len * options.micro_batch_size, options.model.vocab).batch(), nullptr);
    const std::uint64_t planned = train::measure(options, DeviceKind::cpu).total();
    EXPECT_EQ(engine->device().memory().total_peak, planned) << layers;
    if (layers == 0) {
      EXPECT_EQ(planned, selective);
    } else if (layers == 5) {
      EXPECT_EQ(planned, full);
    }
    if (layers > 1) {
      EXPECT_LT(planned, before) << layers;
    }
    before = planned;
  }
}

}  // namespace
}  // namespace octet::testing
