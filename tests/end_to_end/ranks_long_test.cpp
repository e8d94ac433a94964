// Tests more meshes and recipes than ranks_test.cpp has time for.
#include "end_to_end/ranks_cases.h"

namespace octet::testing {
namespace {

INSTANTIATE_TEST_SUITE_P(Bf16, RanksTogether, ::testing::ValuesIn(together_in("bf16")), name_of_run);
INSTANTIATE_TEST_SUITE_P(Rowwise, RanksTogether, ::testing::ValuesIn(together_in("fp8_rowwise")), name_of_run);

TEST(RanksLong, ACheckpointOfAnyMeshResumesOnAnyOther) {
  for (const std::string recipe : {"fp8_delayed", "fp8_block"}) {
    SCOPED_TRACE(recipe);
    expect_a_run_from_mesh_to_mesh(
        kOfMeshes + recipe,
        {on_mesh(4, "--parallel.shard=4 --parallel.gradients=sharded --parallel.reshard_after_forward=true"),
         on_mesh(4, "--parallel.replicate=2 --parallel.shard=2"),
         on_mesh(4, "--parallel.shard=2 --parallel.context=2 --parallel.gradients=sharded"), on_mesh(2, "--parallel.tensor=2"),
         "train run.toml", on_mesh(4, "--parallel.shard=2 --parallel.tensor=2 --parallel.reshard_after_forward=true"),
         on_mesh(2, ""), on_mesh(8, "--parallel.shard=4 --parallel.context=2 --parallel.reshard_after_forward=true"),
         on_mesh(4, "--parallel.tensor=4"), on_mesh(8, "--parallel.shard=8 --parallel.gradients=sharded"),
         on_mesh(4, "--parallel.context=4"),
         on_mesh(8, "--parallel.shard=2 --parallel.context=2 --parallel.tensor=2 --parallel.gradients=sharded")});
  }
}

TEST(RanksLong, ExpertsAreSharedOutAndResumeWithOthers) {
  expect_a_run_from_mesh_to_mesh(
      kOfMixtures,
      {on_mesh(4, "--parallel.expert=2 --parallel.gradients=sharded --parallel.reshard_after_forward=true"),
       on_mesh(4, "--parallel.expert=4"), "train run.toml", on_mesh(4, "--parallel.replicate=2 --parallel.expert=2"),
       on_mesh(4, "--parallel.context=2 --parallel.expert=2 --parallel.reshard_after_forward=true")},
      expect_export_of_checkpoint);
}

}  // namespace
}  // namespace octet::testing
