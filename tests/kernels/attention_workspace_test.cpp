#include "octet/kernels/attention/attention_workspace.h"

#include <gtest/gtest.h>

namespace octet::kernels {
namespace {

AttentionShape shape_of(const AttentionWorkspaceRow& row) {
  return {.batch = row.batch,
          .heads = row.heads,
          .kv_heads = row.kv_heads,
          .head_dim = row.head_dim,
          .deterministic = row.deterministic};
}

// cuDNN refuses less than it asked for, and what is more is lost to the run: rows are to the MiB, and a MiB of slack stands
// beside.
TEST(AttentionWorkspace, TheFormulaGivesWhatWasMeasured) {
  constexpr double kMib = 1 << 20;
  ASSERT_GE(attention_workspace_table().size(), 7u);
  for (const AttentionWorkspaceRow& row : attention_workspace_table()) {
    const double mib = static_cast<double>(attention_backward_workspace(shape_of(row), row.sq, row.sk)) / kMib;
    EXPECT_GE(mib, row.backward_mib) << row.batch << " " << row.sq << " " << row.sk;
    EXPECT_LE(mib, row.backward_mib + 2) << row.batch << " " << row.sq << " " << row.sk;
  }
}

TEST(AttentionWorkspace, FindsTheShapeItselfOrNothing) {
  for (const AttentionWorkspaceRow& row : attention_workspace_table()) {
    EXPECT_EQ(find_attention_workspace(shape_of(row), row.sq, row.sk), &row);
    AttentionShape other = shape_of(row);
    other.heads *= 2;
    EXPECT_EQ(find_attention_workspace(other, row.sq, row.sk), nullptr);
    EXPECT_EQ(find_attention_workspace(shape_of(row), row.sq, row.sk + 128), nullptr);
  }
}

}  // namespace
}  // namespace octet::kernels
