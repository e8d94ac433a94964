#include "octet/report/picture.h"

#include <gtest/gtest.h>

#include <cmath>

#include "report/runs.h"

namespace octet::report {
namespace {

std::vector<report::Run> pictured_runs() {
  std::vector<report::Run> runs{make_run("bf16", "bf16", 300, 1, 1000), make_run("fp8_delayed", "fp8_delayed", 300, 1.002, 1430),
                                make_run("bf16-repeat", "bf16", 300, 0.999, 900)};
  runs[2].info.repeat_of = "bf16";
  runs[0].info.parameters = 379'000'000;
  runs[0].info.device_name = "NVIDIA H200";
  return runs;
}

TEST(Picture, HoldsTheTableOfTheComparison) {
  const std::vector<report::Run> runs = pictured_runs();
  const std::string svg = render_picture("BF16 and FP8", runs, compare(runs), Theme::light);
  for (const char* text : {">BF16 and FP8<", ">379 M parameters, 300 steps of 1,000 tokens, NVIDIA H200<", ">fp8_delayed<",
                           ">1,430<", ">+43.0%<", ">+0.20%<", ">% above bf16<", "per GPU"}) {
    EXPECT_TRUE(has(svg, text)) << text;
  }
  EXPECT_TRUE(has(svg, "0.10\u00a0%.")) << "the spread of the baseline, in the note";
}

TEST(Picture, StandsAlone) {
  const std::vector<report::Run> runs = pictured_runs();
  for (const Theme theme : {Theme::light, Theme::dark}) {
    const std::string svg = render_picture("t", runs, compare(runs), theme);
    EXPECT_TRUE(is_picture_of_runs(svg));
    EXPECT_TRUE(has(svg, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"900\" height=\"540\""));
    for (const char* missing : {"var(", "<script", "href", "url(", "@import", "https:", "nan", "NaN"})
      EXPECT_FALSE(has(svg, missing)) << missing;
    EXPECT_TRUE(has(svg, theme == Theme::light ? "fill=\"#fcfbf8\"" : "fill=\"#131417\""));
  }
  EXPECT_NE(render_picture("t", runs, compare(runs), Theme::light), render_picture("t", runs, compare(runs), Theme::dark));
}

TEST(Picture, WithoutAComparisonItHasNoDifference) {
  const std::vector<report::Run> runs{make_run("alone", "fp8_block", 50, 1, 100)};
  const std::string svg = render_picture("t", runs, compare(runs), Theme::light);
  EXPECT_TRUE(has(svg, ">alone<"));
  EXPECT_FALSE(has(svg, "above"));
  EXPECT_FALSE(has(svg, "faster"));
}

TEST(Picture, AnotherJobIsFasterWithoutADifferenceInLoss) {
  std::vector<report::Run> runs = pictured_runs();
  runs.pop_back();
  runs[1].info.tokens_per_step = 4000;
  const std::string svg = render_picture("t", runs, compare(runs), Theme::light);
  EXPECT_TRUE(has(svg, ">+43.0%<"));
  EXPECT_FALSE(has(svg, ">+0.20%<"));
  EXPECT_FALSE(has(svg, "above bf16"));
}

TEST(Picture, SaysThatARunHadOtherHardware) {
  std::vector<report::Run> runs = pictured_runs();
  runs[1].info.device_name = "NVIDIA H100 80GB HBM3";
  const std::string svg = render_picture("t", runs, compare(runs), Theme::light);
  EXPECT_TRUE(has(svg, "fp8_delayed differs from")) << svg;
  EXPECT_FALSE(has(render_picture("t", pictured_runs(), compare(pictured_runs()), Theme::light), "differs from"));
}

TEST(Picture, OddRunsDoNotBreakIt) {
  std::vector<report::Run> runs{make_run("<b>&\"", "bf16", 40, 1, 0), make_run(std::string(200, 'x'), "", 40, 1, 100),
                                make_run("empty", "fp32", 0, 1, 1)};
  for (auto& m : runs[0].metrics) m.loss = m.step % 2 ? std::nan("") : INFINITY;
  const std::string svg = render_picture("</svg><script>", runs, compare(runs, runs[0].info.name), Theme::dark);
  for (const char* unfit : {"<b>", "<script", "\"nan", "\"inf", "Mnan", "Lnan"}) EXPECT_FALSE(has(svg, unfit)) << unfit;
  EXPECT_TRUE(has(render_picture("t", {}, {}, Theme::light), "</svg>"));
}

}  // namespace
}  // namespace octet::report
