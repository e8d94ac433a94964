#include "octet/report/health.h"

#include <gtest/gtest.h>

#include <cmath>

#include "report/runs.h"

namespace octet::report {
namespace {

constexpr auto index_of(HealthMetric metric) { return static_cast<std::size_t>(metric); }

TEST(HealthSheet, RowsColumnsAndValues) {
  report::Run run;
  add_health(run, 11, {1, 100, 200});
  run.health.push_back({.step = 200, .tensor = "lm_head.w", .amax = 9});
  run.health.push_back({.step = 200, .tensor = "model.norm.n", .edge_pct = 3.5});  // a norm is no linear
  const HealthSheet sheet = health_sheet(run);
  ASSERT_EQ(sheet.rows.size(), 23u);
  EXPECT_EQ(sheet.rows[0].label, "q_proj");
  EXPECT_EQ(sheet.rows[21].layer, 10);  // sorted by number, not by letters
  EXPECT_EQ(sheet.rows[22].label, "lm_head");
  EXPECT_EQ(sheet.rows[22].layer, -1);
  EXPECT_EQ(sheet.operands, (std::vector<std::string>{"x", "w", "g"}));
  EXPECT_EQ(sheet.columns, 3u);
  EXPECT_EQ(sheet.first_step, 1);
  EXPECT_EQ(sheet.last_step, 200);
  const auto& amax = sheet.values[index_of(HealthMetric::amax)];
  EXPECT_EQ(amax[0][21 * 3 + 2], 11);
  EXPECT_EQ(amax[1][22 * 3 + 2], 9);
  EXPECT_TRUE(std::isnan(amax[1][22 * 3 + 1]));
}

TEST(HealthSheet, LabelsThatWouldCollideStayLonger) {
  report::Run run;
  for (const char* name : {"layers.0.attn.proj.w", "layers.0.mlp.proj.w", "layers.0.mlp.up.w", "7.x", "."}) run.health.push_back({.step = 1, .tensor = name});
  const HealthSheet sheet = health_sheet(run);
  ASSERT_EQ(sheet.rows.size(), 5u);
  EXPECT_EQ(sheet.rows[0].label, "attn.proj");
  EXPECT_EQ(sheet.rows[1].label, "mlp.proj");
  EXPECT_EQ(sheet.rows[2].label, "up");
  EXPECT_EQ(sheet.rows[3].label, "7");
  EXPECT_EQ(sheet.operands, (std::vector<std::string>{"x", "w", ""}));
  run.health.clear();
  for (const char* name : {"layers.0.attn.q_proj.fused.x", "layers.0.mlp.gate_proj.fused.x", "layers.0.mlp.down_proj.x"}) {
    run.health.push_back({.step = 1, .tensor = name});
  }
  const HealthSheet fused = health_sheet(run);
  EXPECT_EQ(fused.rows[0].label, "q_proj.fused");
  EXPECT_EQ(fused.rows[1].label, "gate_proj.fused");
  EXPECT_EQ(fused.rows[2].label, "down_proj");
}

TEST(HealthSheet, ManyStepsShareColumnsAndTheWorstStays) {
  report::Run run;
  for (std::int64_t step = 1; step <= 560; ++step) {
    run.health.push_back({.step = step, .tensor = "l.x", .amax = 1, .scale = 2, .saturated_pct = step == 5 ? 3.0 : 0.0, .flushed_pct = 0,
                          .sqnr_db = step == 15 ? 7.0 : 30.0});
  }
  const HealthSheet sheet = health_sheet(run);
  ASSERT_EQ(sheet.columns, kMaxHealthColumns);
  EXPECT_EQ(sheet.values[index_of(HealthMetric::saturated)][0][0], 3);
  EXPECT_EQ(sheet.values[index_of(HealthMetric::saturated)][0][1], 0);
  EXPECT_EQ(sheet.values[index_of(HealthMetric::sqnr)][0][1], 7);
  const WorstSample worst = worst_sample(run, HealthMetric::sqnr);
  EXPECT_EQ(worst.step, 15);
  EXPECT_EQ(worst.value, 7);
  EXPECT_EQ(worst_sample(run, HealthMetric::saturated).step, 5);
}

TEST(HealthSheet, EmptyAndUnknownDrawNothingFalse) {
  EXPECT_EQ(draw(health_sheet(report::Run{}), "none"), "");
  EXPECT_EQ(worst_sample(report::Run{}, HealthMetric::sqnr).tensor, "");
  report::Run run;
  run.health.push_back({.step = 1, .tensor = "<b>.x"});
  const std::string svg = draw(health_sheet(run), "\"quoted\"");
  EXPECT_EQ(svg.find("<b>"), std::string::npos);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_EQ(svg.find("class=\"h"), svg.find("class=\"hit"));  // there is no cell
}

}  // namespace
}  // namespace octet::report
