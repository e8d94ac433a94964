#include "octet/base/json.h"
#include "octet/report/scaling.h"

#include <gtest/gtest.h>

#include <cmath>

#include "octet/report/html.h"
#include "report/runs.h"

namespace octet::report {
namespace {

report::Run on_ranks(const std::string& recipe, std::int64_t processes, double factor, double tokens_per_s) {
  report::Run run = make_run(recipe, recipe, 100, factor, tokens_per_s);
  run.info.processes = processes;
  return run;
}

// The rates that AWS published for a 7B model on 8 to 256 H100, with losses about as close as theirs.
std::vector<report::Run> published() {
  return {on_ranks("bf16", 8, 1, 9350), on_ranks("bf16", 256, 0.9, 8500), on_ranks("fp8_delayed", 256, 0.909, 9700),
          on_ranks("fp8_delayed", 8, 1.001, 11000)};
}

TEST(Scaling, EveryRowIsComparedOnItsOwnNumberOfRanks) {
  const Comparison c = compare(published());
  EXPECT_TRUE(c.scales);
  EXPECT_EQ(c.baseline, "bf16");
  ASSERT_EQ(c.rows.size(), 4u);
  const Row &base = c.rows[0], &base_many = c.rows[1], &many = c.rows[2], &few = c.rows[3];
  EXPECT_EQ(many.label, "fp8_delayed x256");
  EXPECT_TRUE(base.is_baseline && base_many.is_baseline);
  for (const Row* row : {&base, &base_many}) EXPECT_TRUE(std::isnan(row->faster_pct) && std::isnan(row->mean_loss_pct));
  EXPECT_NEAR(few.faster_pct, 17.647, 5e-4);   // 11,000 / 9,350
  EXPECT_NEAR(many.faster_pct, 14.118, 5e-4);  // 9,700 / 8,500
  EXPECT_NEAR(few.mean_loss_pct, 0.1, 1e-9);   // 1.001 / 1
  EXPECT_NEAR(many.mean_loss_pct, 1.0, 1e-9);  // 0.909 / 0.9
  EXPECT_TRUE(std::isnan(base.decrease_pct) && std::isnan(few.decrease_pct));
  EXPECT_NEAR(base_many.decrease_pct, 9.091, 5e-4);  // 850 of 9,350
  EXPECT_NEAR(many.decrease_pct, 11.818, 5e-4);      // 1,300 of 11,000
}

TEST(Scaling, ABaselineServesItsOwnNumberOnly) {
  std::vector<report::Run> runs = published();
  runs.erase(runs.begin() + 1);
  const Comparison c = compare(runs);
  EXPECT_TRUE(std::isnan(c.rows[1].faster_pct) && std::isnan(c.rows[1].mean_loss_pct));
  EXPECT_NEAR(c.rows[2].faster_pct, 17.647, 5e-4);
  EXPECT_TRUE(has(scaling_lead(c), "<strong>bf16 on 8 GPUs</strong>. ")) << scaling_lead(c);
  for (report::Run& run : runs) run.info.processes = run.info.processes == 8 ? 1 : 2;
  EXPECT_TRUE(has(scaling_lead(compare(runs)), "<strong>bf16 on 1 GPU</strong>. "));
}

TEST(Scaling, WhatHasNoBaselineOnItsNumberIsNotCompared) {
  std::vector<report::Run> runs = published();
  runs.push_back(on_ranks("fp8_delayed", 64, 1, 10000));
  const Comparison c = compare(runs);
  const Row& alone = c.rows[4];
  EXPECT_TRUE(std::isnan(alone.faster_pct) && std::isnan(alone.mean_loss_pct));
  EXPECT_NEAR(alone.decrease_pct, 9.091, 5e-4);  // 1,000 of 11,000
}

TEST(Scaling, RunsOfDifferentNamesAreNoScaling) {
  const std::vector<report::Run> runs{on_ranks("bf16", 1, 1, 100), on_ranks("fp8_block", 8, 1, 120)};
  const Comparison c = compare(runs);
  EXPECT_FALSE(c.scales);
  EXPECT_EQ(c.rows[1].label, "fp8_block");
  EXPECT_NEAR(c.rows[1].faster_pct, 20, 1e-9);
  EXPECT_TRUE(std::isnan(c.rows[1].decrease_pct));
  EXPECT_EQ(scaling_section(c, std::vector<std::string>{"c0", "c1"}), "");
}

TEST(Scaling, TheTable) {
  std::vector<report::Run> runs = published();
  for (auto& m : runs[2].metrics) {
    m.tflops_per_gpu = 432.1;
    m.mfu = 0.4369;
    m.comm_exposed_s = 0.025;  // of steps of half a second
  }
  EXPECT_EQ(
      render_text(compare(runs)),
      "GPUs  recipe       tok/s/gpu  decrease  faster  equal loss  noise    loss  higher  TFLOPS    MFU    memory  exposed\n"
      "-------------------------------------------------------------------------------------------------------------------\n"
      "8     bf16             9,350         -       -           -      -  2.0314       -       -      -  1.50 GiB        -\n"
      "8     fp8_delayed     11,000         -  +17.6%       0.94x   0.1%  2.0335  +0.10%       -      -  1.50 GiB        -\n"
      "256   bf16             8,500      9.1%       -           -      -  1.8283       -       -      -  1.50 GiB        -\n"
      "256   fp8_delayed      9,700     11.8%  +14.1%       0.60x   0.1%  1.8466  +1.00%     432  43.7%  1.50 GiB     5.0%\n"
      "Loss: mean over the last tenth of the steps. Decrease: of tokens/s/GPU, from the same recipe's on the fewest GPUs. "
      "Faster, and loss higher: than bf16 on the same number. Equal loss: how many times faster than bf16 the run reaches a loss "
      "that both reach, the higher of their two final smoothed losses. Noise: the standard deviation that chance in the losses "
      "gives this "
      "factor, estimated from the scatter of the losses around their smooth curves; step times count as exact.\n");
  // With stages there is a column for their bubble.
  for (auto& m : runs[3].metrics) m.pipeline_bubble_s = 0.0625;
  const std::string staged = render_text(compare(runs));
  EXPECT_NE(staged.find("memory  exposed  bubble\n"), std::string::npos) << staged;
  EXPECT_NE(staged.find("1.50 GiB        -   12.5%\n"), std::string::npos) << staged;
  EXPECT_NE(staged.find("1.50 GiB     5.0%       -\n"), std::string::npos) << staged;
  const std::string section = scaling_section(compare(runs), std::vector<std::string>{"c0", "c1", "c2", "c3"});
  EXPECT_NE(section.find("<th>pipeline<br>bubble</th>"), std::string::npos);
  EXPECT_NE(section.find("<td data-column=\"pipeline bubble\">12.5%</td>"), std::string::npos);
  for (report::Run& run : runs) run.info.device = "cpu";
  EXPECT_EQ(render_text(compare(runs)).substr(0, 34), "ranks  recipe       tok/s/process ");
}

TEST(Scaling, ThePageSaysAndDrawsIt) {
  const std::vector<report::Run> runs = published();
  const Comparison comparison = compare(runs);
  const std::string html = render_html("Scaling", runs, comparison);
  EXPECT_NE(html.find("From 8 to 256 GPUs, fp8_delayed loses 11.8%</strong> of its tokens/s/GPU; there it is 14% faster than "
                      "bf16 and its loss 1.00% higher."),
            std::string::npos);
  EXPECT_NE(html.find("aria-label=\"throughput over the number of ranks\""), std::string::npos);
  EXPECT_NE(html.find("aria-label=\"loss over the number of ranks\""), std::string::npos);
  EXPECT_NE(html.find("bf16 x256"), std::string::npos) << "the legend of the curves";
  // Each of the two pictures has a line with two dots for each of the two recipes.
  const std::string section = scaling_section(comparison, std::vector<std::string>{"c0", "c1", "c2", "c3"});
  std::size_t dots = 0;
  for (std::size_t at = section.find("<circle"); at != std::string::npos; at = section.find("<circle", at + 1)) ++dots;
  EXPECT_EQ(dots, 8u);
  // The gaps on both numbers of ranks are drawn, each relative to its own baseline.
  EXPECT_NE(html.find("Distance from bf16"), std::string::npos);
  EXPECT_EQ(html.find("nan"), std::string::npos);
}

TEST(Scaling, NothingMeasuredLeavesGaps) {
  std::vector<report::Run> runs{on_ranks("bf16", 1, 1, std::nan("")), on_ranks("bf16", 2, std::nan(""), std::nan(""))};
  const std::string html = render_html("Scaling", runs, compare(runs));
  for (const char* unfit : {"nan", "\"inf", "Mnan"}) EXPECT_EQ(html.find(unfit), std::string::npos) << unfit;
}

TEST(Scaling, JsonHasItsColumns) {
  const auto json = nlohmann::json::parse(render_json(compare(published())));
  EXPECT_EQ(json["rows"][2]["processes"], 256);
  EXPECT_NEAR(json["rows"][2]["decrease_pct"].get<double>(), 11.818, 5e-4);
  EXPECT_EQ(json["rows"][0]["decrease_pct"], nullptr);
  EXPECT_EQ(json["rows"][0]["exposed_pct"], nullptr);
  EXPECT_EQ(json["rows"][0]["bubble_pct"], nullptr);
}

}  // namespace
}  // namespace octet::report
