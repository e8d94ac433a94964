// The waits suffice: with the streams in any order that the waits permit, steps compute the same bits. On a GPU a missing wait is
// a race, which shows now and then. A stream of the CPU executes what it is given at once, so that a missing wait shows here or
// never.
#include <gtest/gtest.h>

#include "support/any_order.h"
#include "train/meshes.h"

namespace octet::testing {
namespace {

class Shuffled : public MeshTest {
 protected:
  static void expect_same_bits(const train::EngineOptions& options, const Layout& layout, bool reach = false) {
    const Steps steps{.count = 2, .micro_batches = 2 * layout.lanes * layout.mesh.data_coordinates()};
    expect_same_bits_in_any_order(options, layout, steps, {0.0, 0.1, 0.5, 1.0}, reach);
  }
};

TEST_F(Shuffled, GiveTheSameBits) {
  for (const std::string recipe : {"bf16", "fp8_delayed", "fp8_rowwise"}) {
    SCOPED_TRACE(recipe);
    for (const nn::Checkpointing mode : {nn::Checkpointing::none, nn::Checkpointing::full}) {
      train::EngineOptions options = context_options(recipe);
      options.checkpointing = mode;
      for (const Weights weights : {Weights::kept, Weights::resharded}) {
        for (const Gradients gradients : {Gradients::whole, Gradients::sharded}) {
          expect_same_bits(options, {.mesh = Mesh({1, 2, 1, 1}), .weights = weights, .gradients = gradients});
        }
      }
    }
  }
}

TEST_F(Shuffled, GiveTheSameBitsOnEveryAxis) {
  const Layout resharded{.mesh = Mesh({2, 2, 1, 1}), .weights = Weights::resharded, .gradients = Gradients::sharded};
  train::EngineOptions tied = context_options("fp8_rowwise");
  tied.model.tied_head = true;
  expect_same_bits(tied, resharded);
  train::EngineOptions calibrated = context_options("fp8_delayed");
  calibrated.calibrates = true;
  expect_same_bits(calibrated, resharded);
  Layout context = resharded, tensor = resharded, experts = resharded;
  context.mesh = Mesh({1, 1, 4, 1});
  tensor.mesh = Mesh({1, 2, 1, 2});
  experts.mesh = Mesh({1, 4, 1, 1}, 2);
  expect_same_bits(context_options("fp8_delayed"), context);
  expect_same_bits(tensor_options("fp8_current"), tensor);
  expect_same_bits(mixture_options("fp8_delayed"), experts);
  Layout lanes = experts;
  lanes.lanes = 2;
  train::EngineOptions kept = mixture_options("bf16"), again = mixture_options("fp8_rowwise"),
                       some = mixture_options("fp8_delayed");
  some.model.layers = 3;
  some.model.dense_layers = {true, false, true};
  kept.checkpointing = nn::Checkpointing::selective;
  again.checkpointing = nn::Checkpointing::full;
  expect_same_bits(mixture_options("fp8_delayed"), lanes);
  expect_same_bits(again, lanes);
  expect_same_bits(some, lanes);
  // Dense blocks between mixtures, whose units share slots: dropped weights, then sharded gradients.
  Layout slots = lanes;
  slots.weights = Weights::kept;
  slots.gradients = Gradients::sharded;
  for (const std::vector<bool>& dense : {std::vector<bool>{false, true, false}, {true, true, false}}) {
    some.model.dense_layers = dense;
    expect_same_bits(some, lanes);
    expect_same_bits(some, slots);
  }
  lanes.mesh = Mesh({1, 2, 2, 1}, 2);
  expect_same_bits(kept, lanes);
}

TEST_F(Shuffled, GiveTheSameBitsOnStages) {
  const auto expect = [](train::EngineOptions options, const Mesh& mesh) {
    SCOPED_TRACE(concat(options.recipe.name, " on ", mesh.ranks(), " ranks"));
    options.model.layers = 4;
    expect_same_bits(options, {.mesh = mesh, .weights = Weights::resharded, .gradients = Gradients::sharded});
  };
  const parallel::Stages stages{.count = 2}, chunks{.count = 2, .chunks = 2};
  expect(context_options("fp8_delayed"), Mesh({1, 2, 1, 1}, 1, stages));
  expect(context_options("fp8_delayed"), Mesh({1, 1, 2, 1}, 1, chunks));
  expect(tensor_options("fp8_current"), Mesh({1, 1, 1, 2}, 1, stages));
  expect(mixture_options("fp8_block"), Mesh({1, 2, 1, 1}, 2, chunks));
}

// Weights with codes of 128x128 tiles and of MX blocks, and attention that reads codes.
TEST_F(Shuffled, GiveTheSameBitsInOtherRecipes) {
  const Layout resharded{.mesh = Mesh({1, 2, 1, 1}), .weights = Weights::resharded, .gradients = Gradients::sharded};
  for (const std::string recipe : {"fp8_block", "mxfp8", "fp8_delayed_attention"}) {
    SCOPED_TRACE(recipe);
    expect_same_bits(context_options(recipe), resharded);
  }
}

// Ranks that fetch from each other's memory, beside the computation, what they exchange of tokens, of keys and of weights.
TEST_F(Shuffled, GiveTheSameBitsWhereRanksFetch) {
  for (const std::string recipe : {"bf16", "fp8_delayed", "fp8_current", "fp8_rowwise"}) {
    SCOPED_TRACE(recipe);
    Layout layout{.weights = Weights::resharded, .gradients = Gradients::sharded};
    for (const nn::Checkpointing mode : {nn::Checkpointing::none, nn::Checkpointing::selective, nn::Checkpointing::full}) {
      if (mode != nn::Checkpointing::none && recipe != "fp8_delayed") continue;
      train::EngineOptions options = tensor_options(recipe);
      options.checkpointing = mode;
      options.document_mask = mode == nn::Checkpointing::selective;  // keeps keys in the order of their sequence
      options.seq_len = 32;  // products of each rank's share of the tokens are computed alone if 16 divides it
      for (const Mesh& mesh :
           {Mesh({1, 1, 1, 2}), Mesh({1, 1, 2, 1}), Mesh({1, 1, 2, 2}), Mesh({2, 1, 1, 2}), Mesh({1, 2, 2, 1})}) {
        layout.mesh = mesh;
        expect_same_bits(options, layout, true);
      }
    }
    layout.mesh = Mesh({1, 1, 1, 4});
    expect_same_bits(tensor_options(recipe), layout, true);
    expect_same_bits(gpt_neox_options(recipe, true), layout, true);
    expect_same_bits(phi3_options(recipe), layout, true);
    layout.mesh = Mesh({1, 2, 2, 1});
    expect_same_bits(olmo2_options(recipe), layout, true);
    layout.mesh = Mesh({1, 4, 1, 1}, 2);
    expect_same_bits(mixture_options(recipe), layout, true);
  }
}

// A unit is gathered and reduced once a step.
TEST_F(Shuffled, GiveTheSameBitsWithOneMicroBatch) {
  for (const std::string recipe : {"bf16", "fp8_delayed"}) {
    for (const bool reach : {false, true}) {
      const Layout layout{.mesh = Mesh({1, 2, 2, 1}), .weights = Weights::resharded, .gradients = Gradients::sharded};
      expect_same_bits_in_any_order(context_options(recipe), layout, {.count = 2, .micro_batches = 2}, {0.0, 0.5, 1.0}, reach);
    }
  }
}

}  // namespace
}  // namespace octet::testing
