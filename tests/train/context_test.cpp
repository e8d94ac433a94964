// Counts what context parallelism sends, with ranks that are threads. step_of_one_rank_test.cpp tests the steps.
#include <gtest/gtest.h>

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

}  // namespace
}  // namespace octet::testing
