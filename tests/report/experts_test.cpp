#include "octet/report/experts.h"

#include <gtest/gtest.h>

#include "octet/report/html.h"
#include "report/runs.h"

namespace octet::report {
namespace {

Run run_with(const std::string& layer, const std::vector<std::vector<std::int64_t>>& chosen) {
  Run run;
  for (std::size_t i = 0; i < chosen.size(); ++i)
    run.experts.push_back({.step = static_cast<std::int64_t>(10 * (i + 1)), .layer = layer, .chosen = chosen[i]});
  return run;
}

TEST(ExpertSheets, AreMultiplesOfTheFairShare) {
  const std::vector<ExpertSheet> sheets =
      expert_sheets(run_with("a", {{10, 10, 10, 10}, {40, 0, 0, 0}, {0, 30, 9, 1}, {0, 31, 8, 1}}));
  ASSERT_EQ(sheets.size(), 1u);
  const ExpertSheet& s = sheets[0];
  EXPECT_EQ(s.experts, 4u);
  EXPECT_EQ(s.columns, 4u);
  EXPECT_EQ(s.first_step, 10);
  EXPECT_EQ(s.last_step, 40);
  EXPECT_EQ(s.loads, (std::vector<double>{1, 4, 0, 0, 1, 0, 3, 3.1, 1, 0, 0.9, 0.8, 1, 0, 0.1, 0.1}));
  EXPECT_EQ(s.recent, (std::vector<double>{0, 3.1, 0.8, 0.1})) << "the last of four columns";
  EXPECT_EQ(s.fullest, 1u);
  EXPECT_EQ(s.emptiest, 0u);
  EXPECT_EQ(s.starved, 1u);
}

// More steps than columns: a column is a mean, whatever the number of samples in it.
TEST(ExpertSheets, ColumnsAreMeans) {
  std::vector<std::vector<std::int64_t>> chosen;
  for (int i = 0; i < 130; ++i) chosen.push_back(i % 2 == 0 ? std::vector<std::int64_t>{2, 6} : std::vector<std::int64_t>{6, 2});
  const ExpertSheet s = expert_sheets(run_with("a", chosen)).at(0);
  EXPECT_EQ(s.columns, kMaxExpertColumns);
  for (std::size_t i = 0; i < s.columns; ++i) {
    EXPECT_GE(s.loads[i], 0.5);
    EXPECT_LE(s.loads[i], 1.5);
    EXPECT_NEAR(s.loads[i] + s.loads[s.columns + i], 2, 1e-12);
  }
}

TEST(ExpertSheets, WithoutSamplesThereIsNothing) {
  EXPECT_TRUE(expert_sheets({}).empty());
  EXPECT_EQ(draw_experts({}), "");
  EXPECT_TRUE(expert_sheets(run_with("a", {{}, {}})).empty());
  EXPECT_TRUE(has(draw_experts(expert_sheets(run_with("a", {{0, 0}}))), "expert 0")) << "a step without tokens";
}

// All mixtures are in the table, and the pictures are those whose loads differ most.
TEST(ExpertSheets, ThePageHasATableAndPictures) {
  report::Run run = make_run("moe", "bf16", 20, 1, 100);
  for (int layer = 0; layer < 9; ++layer)
    run.experts.push_back(
        {.step = 10, .layer = "model.layers." + std::to_string(layer) + ".<mlp>", .chosen = {10 + layer, 10, 10 - layer}});
  const std::string page = draw_experts(expert_sheets(run));
  for (int layer = 0; layer < 9; ++layer) {
    const std::string name = "model.layers." + std::to_string(layer) + ".&lt;mlp&gt;";
    EXPECT_TRUE(has(page, "<td class=\"name\">" + name)) << layer;
    EXPECT_EQ(has(page, "Loads of the experts of " + name), layer >= 3) << layer;
  }
  EXPECT_TRUE(has(page, "Pictures of the 6 mixtures whose loads differ most."));
  EXPECT_TRUE(has(page, "1.8×<small>expert 0</small>"));
}

}  // namespace
}  // namespace octet::report
