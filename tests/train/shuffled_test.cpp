// The waits of the schedule suffice: with the streams' tasks in any order that the waits permit, steps compute the same bits. On
// a GPU a missing wait is a race, which shows now and then. On the CPU tasks run one after another, so that a missing wait shows
// here or never.
#include <gtest/gtest.h>

#include "support/shuffle.h"
#include "train/meshes.h"

namespace octet::testing {
namespace {

class Shuffled : public MeshTest {
 protected:
  static void expect_same_bits_in_any_order(const train::EngineOptions& options, const Layout& layout) {
    SCOPED_TRACE(text(layout));
    const Steps steps{.count = 2, .micro_batches = 2 * layout.lanes * layout.mesh.data_coordinates()};
    const RunState expected = run_mesh(options, layout, steps);
    for (const double others_first : {0.0, 0.1, 0.5, 1.0}) {
      std::atomic<int> moved = 0;
      const auto shuffle = [&](train::Engine& engine) {
        engine.model().units().executor().arrange(
            [&moved, others_first, random = std::mt19937_64(1)](const std::vector<parallel::Task>& tasks) mutable {
              std::vector<parallel::Task> result = shuffled(tasks, random, others_first);
              for (std::size_t i = 0; i < tasks.size(); ++i)
                moved += tasks[i].kind != result[i].kind || tasks[i].index != result[i].index;
              return result;
            });
      };
      const RunState actual = run_mesh(options, layout, steps, {.before = shuffle});
      EXPECT_GT(moved, 0) << others_first;
      SCOPED_TRACE(others_first);
      expect_same_bits(actual, expected);
    }
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
          expect_same_bits_in_any_order(options, {.mesh = Mesh({1, 2, 1, 1}), .weights = weights, .gradients = gradients});
        }
      }
    }
  }
}

TEST_F(Shuffled, GiveTheSameBitsOnEveryAxis) {
  const Layout resharded{.mesh = Mesh({2, 2, 1, 1}), .weights = Weights::resharded, .gradients = Gradients::sharded};
  train::EngineOptions tied = context_options("fp8_rowwise");
  tied.model.tied_head = true;
  expect_same_bits_in_any_order(tied, resharded);
  Layout context = resharded, tensor = resharded, experts = resharded, stages = resharded, chunks = resharded;
  context.mesh = Mesh({1, 1, 4, 1});
  tensor.mesh = Mesh({1, 2, 1, 2});
  experts.mesh = Mesh({1, 4, 1, 1}, 2);
  expect_same_bits_in_any_order(context_options("fp8_delayed"), context);
  expect_same_bits_in_any_order(tensor_options("fp8_current"), tensor);
  expect_same_bits_in_any_order(mixture_options("fp8_delayed"), experts);
  Layout lanes = experts;
  lanes.lanes = 2;
  train::EngineOptions kept = mixture_options("bf16"), again = mixture_options("fp8_rowwise");
  kept.checkpointing = nn::Checkpointing::selective;
  again.checkpointing = nn::Checkpointing::full;
  expect_same_bits_in_any_order(mixture_options("fp8_delayed"), lanes);
  expect_same_bits_in_any_order(again, lanes);
  lanes.mesh = Mesh({1, 2, 2, 1}, 2);
  expect_same_bits_in_any_order(kept, lanes);
  train::EngineOptions deep = context_options("fp8_delayed");
  deep.model.layers = 4;
  stages.mesh = Mesh({1, 2, 1, 1}, 1, {.count = 2});
  chunks.mesh = Mesh({1, 1, 2, 1}, 1, {.count = 2, .chunks = 2});
  expect_same_bits_in_any_order(deep, stages);
  expect_same_bits_in_any_order(deep, chunks);
}

}  // namespace
}  // namespace octet::testing
