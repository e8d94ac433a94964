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
    AttentionShape windowed = shape_of(row);
    windowed.window = row.sk - 1;
    EXPECT_EQ(find_attention_workspace(windowed, row.sq, row.sk), nullptr);
    windowed.window = row.sk;  // hides nothing
    EXPECT_EQ(find_attention_workspace(windowed, row.sq, row.sk), &row);
  }
}

TEST(AttentionWorkspace, KeysOfTheLargestCall) {
  EXPECT_EQ(attention_backward_keys({}, 100, 100), 100);
  EXPECT_EQ(attention_backward_keys({}, 100, 400), 300);
  EXPECT_EQ(attention_backward_keys({}, 100, 150), 100);
  EXPECT_EQ(attention_backward_keys({.batch = 2}, 100, 400), 400);
  EXPECT_EQ(attention_backward_keys({.window = 301}, 100, 400), 400);
  EXPECT_EQ(attention_backward_keys({.window = 400}, 100, 400), 300);
}

}  // namespace
}  // namespace octet::kernels
