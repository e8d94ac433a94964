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

// In the first sample, expert 10 had no tokens.
TEST(HealthSheet, ExpertsStandInTheOrderOfTheirNumbers) {
  report::Run run;
  const auto add = [&](std::int64_t step, const std::string& linear) {
    run.health.push_back({.step = step, .tensor = "model.layers.0." + linear + ".x"});
  };
  add(1, "self_attn.o_proj");
  for (const int expert : {2, 11}) add(1, "mlp.experts." + std::to_string(expert) + ".gate_proj.fused");
  for (const int expert : {2, 11}) add(1, "mlp.experts." + std::to_string(expert) + ".down_proj");
  for (const char* kind : {".gate_proj.fused", ".down_proj"}) add(2, std::string("mlp.experts.10") + kind);
  const HealthSheet sheet = health_sheet(run);
  std::vector<std::string> labels;
  for (const HealthRow& row : sheet.rows) labels.push_back(row.label);
  EXPECT_EQ(labels, (std::vector<std::string>{"o_proj", "2.gate_proj.fused", "10.gate_proj.fused", "11.gate_proj.fused",
                                              "2.down_proj", "10.down_proj", "11.down_proj"}));
  const std::string svg = draw(sheet, "experts");
  EXPECT_TRUE(has(svg, ">10.gate_proj<")) << "the suffix that all experts share goes first where room is scarce";
}

// E4M3 gives 31.5 dB and E5M2 25.5 dB at best, so neither is a cause of alarm.
TEST(HealthSheet, SignalToNoiseIsColouredByWhatTheFormatAllows) {
  const auto classes = [](double of_x, double of_g) {
    report::Run run;
    for (const char* layer : {"0", "1", "2"}) {
      const bool odd = layer == std::string("2");
      for (const auto& [operand, value] : {std::pair(".x", odd ? of_x : 31.4), std::pair(".g", odd ? of_g : 25.4)}) {
        run.health.push_back({.step = 1,
                              .tensor = std::string("layers.") + layer + ".o" + operand,
                              .amax = 1,
                              .scale = 1,
                              .saturated_pct = 0,
                              .flushed_pct = 0,
                              .sqnr_db = value});
      }
    }
    const std::string svg = draw(health_sheet(run), "t");
    return svg.substr(svg.find("signal to noise"));
  };
  const std::string healthy = classes(31.4, 25.4), lost = classes(31.4, 5);
  EXPECT_FALSE(has(healthy, "<path class=\"t1\"")) << healthy;
  EXPECT_TRUE(has(lost, "<path class=\"t8\""));
  EXPECT_TRUE(has(classes(24.0, 25.4), "<path class=\"t5\"")) << "7.5 dB below E4M3";
}

// Inputs are never E5M2, so a run whose inputs are all bad does not look like a healthy one in E5M2.
TEST(HealthSheet, BadInputsDoNotLowerWhatIsAllowed) {
  const auto sheet_of = [](const char* operand) {
    report::Run run;
    for (const char* layer : {"0", "1", "2"})
      run.health.push_back({.step = 1, .tensor = std::string("layers.") + layer + ".o." + operand, .sqnr_db = 22});
    const std::string svg = draw(health_sheet(run), "t");
    return svg.substr(svg.find("signal to noise"));
  };
  for (const char* operand : {"x", "w"}) EXPECT_TRUE(has(sheet_of(operand), "<path class=\"t6\"")) << "9.5 dB below E4M3";
  EXPECT_TRUE(has(sheet_of("g"), "<path class=\"t3\"")) << "3.5 dB below E5M2";
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
