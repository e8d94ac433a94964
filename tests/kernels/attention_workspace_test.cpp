#include "octet/kernels/attention/attention_workspace.h"

#include <gtest/gtest.h>

#include "octet/device/arena.h"

namespace octet::kernels {
namespace {

AttentionShape shape_of(const AttentionWorkspaceRow& row) {
  return {.batch = row.batch,
          .heads = row.heads,
          .kv_heads = row.kv_heads,
          .head_dim = row.head_dim,
          .deterministic = row.deterministic};
}

// cuDNN refuses a workspace that is smaller than it asked for, and a larger one wastes memory. The table is measured to the MiB
// and the formula adds at most another MiB.
TEST(AttentionWorkspace, TheFormulaGivesWhatWasMeasured) {
  constexpr double kMib = 1 << 20;
  ASSERT_GE(attention_workspace_table().size(), 9u);
  for (const AttentionWorkspaceRow& row : attention_workspace_table()) {
    const std::size_t bytes = row.fp8 ? attention_backward_fp8_workspace(shape_of(row), row.sq)
                                      : attention_backward_workspace(shape_of(row), row.sq, row.sk);
    const double mib = static_cast<double>(bytes) / kMib;
    EXPECT_GE(mib, row.backward_mib) << row.batch << " " << row.sq << " " << row.sk;
    EXPECT_LE(mib, row.backward_mib + 2) << row.batch << " " << row.sq << " " << row.sk;
  }
}

TEST(AttentionWorkspace, FindsTheShapeItselfOrNothing) {
  for (const AttentionWorkspaceRow& row : attention_workspace_table()) {
    EXPECT_EQ(find_attention_workspace(shape_of(row), row.sq, row.sk, row.fp8), &row);
    EXPECT_NE(find_attention_workspace(shape_of(row), row.sq, row.sk, !row.fp8), &row);
    AttentionShape other = shape_of(row);
    other.heads *= 2;
    EXPECT_EQ(find_attention_workspace(other, row.sq, row.sk, row.fp8), nullptr);
    EXPECT_EQ(find_attention_workspace(shape_of(row), row.sq, row.sk + 128, row.fp8), nullptr);
    AttentionShape windowed = shape_of(row);
    windowed.window = row.sk - 1;
    EXPECT_EQ(find_attention_workspace(windowed, row.sq, row.sk, row.fp8), nullptr);
    windowed.window = row.sk;  // a window that hides nothing
    EXPECT_EQ(find_attention_workspace(windowed, row.sq, row.sk, row.fp8), &row);
  }
}

// The scratch memory depends only on the shapes, so the meta device and the GPU agree whatever the documents are.
TEST(AttentionWorkspace, DocumentsTakeTheSameHoweverManyTheyAre) {
  const auto meta = make_meta_device(DeviceKind::cuda);
  const auto stream = meta->make_stream();
  const Buffer nowhere = meta->allocate(1, MemoryCategory::workspace);
  const auto bytes = [&](std::int64_t sq, std::int64_t sk, std::int64_t documents) {
    const auto on_meta = [&](DType dtype, Shape shape) { return Tensor(nowhere.data(), dtype, shape); };
    const Tensor q = on_meta(DType::bf16, {sq, 8 * 64}), k = on_meta(DType::bf16, {sk, 2 * 64});
    Arena arena(*meta, MemoryCategory::workspace, 0);
    attention_backward(*stream, arena,
                       {.shape = {.batch = 1, .heads = 8, .kv_heads = 2, .head_dim = 64, .scale = 0.125},
                        .q = q,
                        .k = k,
                        .v = k,
                        .first_keys = documents > 0 ? on_meta(DType::i32, {sq}) : Tensor(),
                        .documents = documents,
                        .o = q,
                        .lse = on_meta(DType::f32, {8, sq}),
                        .go = q,
                        .gq = q,
                        .gk = k,
                        .gv = k});
    return arena.high_water();
  };
  EXPECT_EQ(bytes(1000, 1000, 1), bytes(1000, 1000, 1000));
  EXPECT_EQ(bytes(500, 1000, 1), bytes(500, 1000, 77));
  EXPECT_GT(bytes(1000, 1000, 1), bytes(1000, 1000, 0));
  // gQ in FP32, gK and gV of every query head in FP32, and gK and gV of every key/value head before they are copied to their
  // places.
  const std::int64_t least = 1000 * (8 * 64 * 4 + 2 * 8 * 64 * 4 + 2 * 2 * 64 * 2);
  EXPECT_GE(bytes(1000, 1000, 1), static_cast<std::size_t>(least));
}

}  // namespace
}  // namespace octet::kernels
