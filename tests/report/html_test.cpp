#include "octet/report/html.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include "octet/base/file.h"
#include "octet/base/require.h"
#include "octet/report/curves.h"
#include "report/runs.h"
#include "support/folder.h"

namespace octet::report {
namespace {
using testing::TemporaryFolder;

// Checks that elements are closed in order, that attributes are quoted, and that texts have no '<' or bare '&'. Returns the
// fault, or "".
std::string markup_fault(const std::string& html) {
  static const std::set<std::string> kVoid{"meta", "br", "!doctype"};
  std::vector<std::string> open;
  for (std::size_t i = 0; i < html.size();) {
    if (html[i] == '&') {
      const std::size_t end = html.find(';', i);
      if (end == std::string::npos || end - i > 7) return "bare & at " + html.substr(i, 40);
    }
    if (html[i] != '<') {
      ++i;
      continue;
    }
    std::size_t end = i + 1;
    for (char quote = 0; end < html.size() && (quote || html[end] != '>'); ++end) {
      if (html[end] == '"') quote = quote ? 0 : '"';
      if (!quote && html[end] == '<') return "'<' inside a tag: " + html.substr(i, 60);
    }
    if (end >= html.size()) return "a tag does not end: " + html.substr(i, 60);
    const std::string tag = html.substr(i + 1, end - i - 1);
    const std::string name = tag.substr(0, tag.find_first_of(" \n/", 1));
    i = end + 1;
    if (tag[0] == '/') {
      if (open.empty() || "/" + open.back() != tag) return "</" + tag + " closes " + (open.empty() ? "nothing" : open.back());
      open.pop_back();
    } else if (tag.back() != '/' && !kVoid.count(name)) {
      open.push_back(name);
      if (name == "style") i = html.find("</style>", i);
    }
  }
  return open.empty() ? "" : "never closed: " + open.back();
}

std::string render(const std::vector<report::Run>& runs) { return render_html("A title", runs, compare(runs)); }

std::size_t count_of(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

std::vector<report::Run> six_runs() {
  std::vector<report::Run> runs;
  double factor = 1;
  for (const char* recipe : {"bf16", "fp8_delayed", "fp8_current", "fp8_block", "mxfp8"}) {
    runs.push_back(make_run(recipe, recipe, 300, factor, 1000));
    if (factor != 1) add_health(runs.back(), 4, {1, 100, 200, 300});
    factor += 0.001;
  }
  runs.push_back(make_run("bf16 (repeat)", "bf16", 300, 0.9995, 900));
  runs.back().info.repeat_of = "bf16";
  return runs;
}

TEST(Html, ShowsTheNumbersOfTheComparison) {
  const std::string html = render(six_runs());
  EXPECT_EQ(markup_fault(html), "");
  EXPECT_NE(html.find("All 4 recipes end within 0.40% of bf16"), std::string::npos);
  EXPECT_NE(html.find("bf16 itself moves by 0.05%"), std::string::npos);
  EXPECT_NE(html.find("+0.10%"), std::string::npos);
  EXPECT_NE(html.find("Distance from bf16"), std::string::npos);
  EXPECT_EQ(count_of(html, "<details open>"), 4u);
  EXPECT_EQ(html.find("nan"), std::string::npos);
}

TEST(Html, NeedsNoNetworkAndNoScript) {
  const std::string html = render(six_runs());
  for (const char* forbidden : {"http:", "https:", "<script", "<link", "@import", "url(", "src=", "javascript:"}) {
    EXPECT_EQ(html.find(forbidden), std::string::npos) << forbidden;
  }
  EXPECT_NE(html.find("prefers-color-scheme: dark"), std::string::npos);
}

TEST(Html, TextOfTheRunsIsEscaped) {
  std::vector<report::Run> runs{make_run("<script>alert(1)</script>", "\"><img>", 30, 1, 100), make_run("bf16", "bf16", 30, 1, 100)};
  runs[0].info.model = "</dd><b>&";
  runs[1].info.data = "\xff\x01'";
  runs[0].health.push_back({.step = 1, .tensor = "<i>\"'&.x", .amax = 1, .sqnr_db = 3});
  runs[0].health.push_back({.step = 1, .tensor = "<i>norm.n", .edge_pct = 62.5});
  runs[0].health.push_back({.step = 1, .tensor = "<i>down.x", .top_channel_pct = 3.25});
  const std::string html = render_html("</title><script>", runs, compare(runs));
  EXPECT_EQ(markup_fault(html), "");
  EXPECT_EQ(html.find("<script"), std::string::npos);
  EXPECT_EQ(html.find("<img"), std::string::npos);
  EXPECT_EQ(html.find("<i>"), std::string::npos);
  EXPECT_EQ(count_of(html, "weights of the norm, at the edge of their binade: 62.5%"), 1u);
  EXPECT_EQ(count_of(html, "largest elements of all channels, after SwiGLU: at most 3.25% (&lt;i&gt;down, step 1)."), 1u);
  EXPECT_EQ(count_of(html, "Weights of norms at the edge of their binade: at most 62.5% (&lt;i&gt;norm, step 1)."), 1u);
}

TEST(Html, OddRunsDoNotBreakIt) {
  const double inf = std::numeric_limits<double>::infinity();
  std::vector<report::Run> odd(3);
  odd[0].info.name = "bf16";  // no metrics at all
  odd[1] = make_run("wild", "", 40, 1, 0);
  for (std::size_t i = 0; i < odd[1].metrics.size(); ++i) {
    auto& m = odd[1].metrics[i];
    m.loss = i % 4 == 0 ? std::nan("") : i % 4 == 1 ? inf : i % 4 == 2 ? -1e300 : 1e300;
    m.grad_norm = i % 2 ? -1 : 0;
    m.memory_peak_gib = i % 2 ? -1 : inf;
    m.step_time_s = -inf;
    m.tokens_per_s_per_gpu = i % 2 ? inf : -5;
    m.eval_loss = -inf;
    m.step = std::numeric_limits<std::int64_t>::max() - 40 + static_cast<std::int64_t>(i);
  }
  odd[1].health.push_back({.step = 1, .tensor = "", .amax = -1, .scale = inf, .saturated_pct = 1e300, .flushed_pct = -1, .sqnr_db = -inf});
  odd[2] = make_run("one", "fp32", 1, 0, 100);
  for (const auto& runs : {std::vector<report::Run>{}, std::vector<report::Run>{odd[0]}, std::vector<report::Run>{odd[1]}, std::vector<report::Run>{odd[2]}, odd,
                           std::vector<report::Run>{odd[2], odd[2], odd[2]}}) {
    const std::string html = render(runs);
    EXPECT_EQ(markup_fault(html), "") << runs.size();
    EXPECT_EQ(html.find("NaN"), std::string::npos);
    for (const char* unfit : {"\"nan", "\"inf", "\"-inf", " nan", "Mnan", "Lnan"}) EXPECT_EQ(html.find(unfit), std::string::npos) << unfit;
  }
}

TEST(Html, SaysHowFarAnUnfinishedRunIs) {
  report::Run run = make_run("a", "bf16", 400, 1, 100);
  run.info.steps = 2000;
  run.info.first_started = run.info.started = "2026-11-27T10:00:00Z";
  EXPECT_TRUE(has(render({run}), "400 of 2,000 steps, 400 K tokens"));
  EXPECT_FALSE(has(render({run}), "resumed"));
  run.info.ended = "2026-11-28T10:00:00Z";
  for (const auto& [code, how] : {std::pair(0, "stopped"), std::pair(75, "stopped"), std::pair(77, "ended with code 77")}) {
    run.info.code = code;
    EXPECT_TRUE(has(render({run}), std::string("400 of 2,000 steps, ") + how + ", 400 K tokens")) << code;
  }
  run.info.started = "2026-11-28T09:00:00Z";
  EXPECT_TRUE(
      has(render({run}), "<dt>first started</dt><dd>2026-11-27T10:00:00Z</dd></div><div><dt>resumed</dt><dd>2026-11-28T09"));
  run.info.steps = 400;
  EXPECT_TRUE(has(render({run}), ">400 of 400 steps, ended with code 77, 400 K tokens"));
  run.info.code = 0;
  EXPECT_TRUE(has(render({run}), ">400 steps, 400 K tokens"));
  run.metrics.back().skipped_steps = 3;
  EXPECT_TRUE(has(render({run}), "were skipped.</strong> 400 steps, 400 K tokens"));
}

TEST(Html, AVerdictFromOneSampleSaysSo) {
  report::Run run = make_run("a", "fp8_delayed", 40, 1, 100);
  add_health(run, 2, {1});
  EXPECT_TRUE(has(render({run}), "Verdict: none yet. There is 1 sample (step 1), too few to judge"));
  add_health(run, 2, {40});
  EXPECT_TRUE(has(render({run}), "Verdict: nothing to worry about."));
}

TEST(Html, NamesRunsAndTheirRecipes) {
  const std::vector<report::Run> runs{make_run("one", "bf16", 20, 1, 100), make_run("two", "bf16", 20, 1, 100)};
  EXPECT_TRUE(has(render(runs), "<th>run</th><th class=\"words\">recipe</th>"));
  EXPECT_TRUE(has(render(runs), "<td class=\"words\" data-column=\"recipe\">bf16</td>"));
  EXPECT_TRUE(has(render(six_runs()), "<tr><th>recipe</th>"));
}

TEST(Html, ShowsALossWhereThereIsNoCurve) {
  report::Run run = make_run("a", "bf16", 40, 1, 100);
  EXPECT_TRUE(has(render({run}), ">the last tenth<"));
  // The last held-out loss lies below all training losses.
  run.metrics.back().eval_loss = 0.5;
  const std::string html = render({run});
  EXPECT_TRUE(has(html, "<circle class=\"mark c0\" cx=\"100.00%\""));
  std::erase_if(run.metrics, [](const auto& line) { return line.step != 10; });
  EXPECT_FALSE(has(render({run}), ">the last tenth<"));
  EXPECT_TRUE(has(render({run}), "<circle class=\"dot c0\""));
  run.metrics.back().loss = run.metrics.back().grad_norm = std::nan("");
  run.metrics.back().eval_loss.reset();
  EXPECT_TRUE(has(render({run}), ">no finite loss</text>"));
  EXPECT_TRUE(has(render({run}), ">no finite norm</text>"));
}

TEST(Html, ASpikeOfALongRunIsDrawn) {
  report::Run run = make_run("a", "bf16", 900, 1, 100);
  EXPECT_TRUE(has(render({run}), "the faint line is every logged step."));
  run = make_run("a", "bf16", 9000, 1, 100);
  for (telemetry::StepMetrics& line : run.metrics) line.loss = line.step == 4500 ? 20 : 3;
  const LineChart chart = loss_chart(shown_runs(std::vector{run}, compare(std::vector{run})));
  const std::vector<Point>& raw = chart.series[0].raw;
  EXPECT_LE(raw.size(), 900u);
  EXPECT_EQ(std::count_if(raw.begin(), raw.end(), [](const Point& point) { return point.y == 20; }), 1);
  ASSERT_EQ(chart.series[0].marks.size(), 40u);
  EXPECT_EQ(chart.series[0].marks.front().x, 10);
  EXPECT_EQ(chart.series[0].marks.back().x, 9000);
  EXPECT_EQ(chart.series[0].marks.back().y, 1.1 * (2 + 3.0 / 9000)) << "a loss that was evaluated, not a mean of several";
  EXPECT_TRUE(has(render({run}), "the faint line joins the lowest and the highest loss of every few logged steps."));
}

TEST(Html, NamesTheTokensOfAStepIfAllStepsHadThem) {
  report::Run run = make_run("a", "bf16", 20, 1, 100);
  EXPECT_TRUE(has(render({run}), "step, 1,000 tokens each"));
  run.info.tokens_per_step = 2000;  // from a change in the middle on
  for (telemetry::StepMetrics& line : run.metrics) line.tokens_seen += 1000 * std::max<std::int64_t>(0, line.step - 10);
  EXPECT_FALSE(has(render({run}), "tokens each"));
}

TEST(Html, StepsOnAnAxisAreWhole) {
  for (const std::int64_t steps : {2, 5, 9, 12, 17}) {
    const std::string html = render({make_run("a", "bf16", steps, 1, 100)});
    for (std::size_t at = 0; (at = html.find("text-anchor=\"middle\" x=\"", at)) != std::string::npos; ++at) {
      const std::size_t begin = html.find('>', at) + 1;
      EXPECT_EQ(html.substr(begin, html.find('<', begin) - begin).find('.'), std::string::npos) << html.substr(begin, 20);
    }
  }
}

TEST(Html, ManyRunsAndManyTensors) {
  std::vector<report::Run> runs;
  for (int i = 0; i < 12; ++i) runs.push_back(make_run("run " + std::to_string(i), i % 2 ? "fp8_delayed" : "bf16", 20, 1, 100));
  add_health(runs[0], 100, {1, 2, 3});
  const std::string html = render(runs);
  EXPECT_EQ(markup_fault(html), "");
  for (int colour = 0; colour < 8; ++colour) {
    EXPECT_NE(html.find("swatch c" + std::to_string(colour)), std::string::npos) << "eight colours before one comes twice: " << colour;
  }
}

TEST(Html, AColourBelongsToARecipe) {
  const std::vector<report::Run> runs{make_run("x", "fp8_block", 20, 1, 100), make_run("y", "bf16", 20, 1, 100)};
  const std::string html = render(runs);
  EXPECT_NE(html.find("swatch c3\"></span>x"), std::string::npos);
  EXPECT_NE(html.find("swatch c0\"></span>y"), std::string::npos);
}

TEST(Html, ShowsTheLossBeforeStep1OfRunsThatGoOnFromWeights) {
  std::vector<report::Run> runs = six_runs();
  EXPECT_EQ(render(runs).find("before<br>step 1"), std::string::npos);
  EXPECT_EQ(render(runs).find("Before step 1"), std::string::npos);
  runs[1].info.initial_eval_loss = 4.02;
  runs[1].info.initial_eval_loss_bf16 = 4;
  const std::string html = render(runs);
  EXPECT_EQ(markup_fault(html), "");
  EXPECT_NE(html.find("<th>before<br>step 1</th>"), std::string::npos);
  EXPECT_NE(html.find("<td data-column=\"before step 1\">4.0200<small class=\"\">+0.50%</small></td>"), std::string::npos);
  EXPECT_NE(html.find("Before step 1: the held-out loss"), std::string::npos);
  EXPECT_NE(render({runs[1]}).find(">4.0200<small"), std::string::npos) << "a run alone";
}

TEST(Html, ShowsExposedCommunicationWhereThereAreRanks) {
  std::vector<report::Run> runs{make_run("bf16", "bf16", 20, 1, 100), make_run("fp8_block", "fp8_block", 20, 1, 100)};
  for (auto& m : runs[1].metrics) m.comm_exposed_s = 0.0625;  // of steps of half a second
  EXPECT_EQ(render(runs).find("exposed"), std::string::npos);
  runs[1].info.processes = 2;
  const std::string html = render(runs);
  EXPECT_NE(html.find("<th>exposed<br>communication</th>"), std::string::npos);
  EXPECT_EQ(count_of(html, ">12.5%</td>"), 1u);
}

TEST(Html, ShowsTheBubbleOfRunsWithStages) {
  std::vector<report::Run> runs{make_run("bf16", "bf16", 20, 1, 100), make_run("fp8_block", "fp8_block", 20, 1, 100)};
  EXPECT_EQ(render(runs).find("bubble"), std::string::npos);
  for (auto& m : runs[1].metrics) m.pipeline_bubble_s = m.step < 3 ? 0.25 : 0.0625;  // the first steps are left out
  const std::string html = render(runs);
  EXPECT_EQ(markup_fault(html), "");
  EXPECT_NE(html.find("<th>pipeline<br>bubble</th>"), std::string::npos);
  EXPECT_EQ(count_of(html, "<td data-column=\"pipeline bubble\">12.5%</td>"), 1u);
  EXPECT_EQ(count_of(html, "<td data-column=\"pipeline bubble\">–</td>"), 1u);
}

// On a phone each row becomes a card that shows the columns' names, so every cell but the first must have one.
TEST(Html, EveryCellNamesItsColumn) {
  const std::string html = render(six_runs());
  EXPECT_GT(count_of(html, "<td"), 50u);
  EXPECT_EQ(count_of(html, "<td"), count_of(html, "data-column=") + count_of(html, "<td class=\"name\">"));
  EXPECT_EQ(count_of(html, "<table"), count_of(html, "<table class=\"cards\">"));
}

// A chart fills the width that it is given. Nothing in it has a horizontal position or a width in pixels, except the texts at its
// left edge.
TEST(Html, ChartsHaveNoWidth) {
  const std::string html = render(six_runs());
  for (std::size_t at = 0; (at = html.find("<svg class=\"chart", at)) != std::string::npos; ++at) {
    const std::string tag = html.substr(at, html.find('>', at) - at);
    EXPECT_EQ(tag.find("viewBox"), std::string::npos) << tag;
    EXPECT_EQ(tag.find("width"), std::string::npos) << tag;
  }
  EXPECT_NE(html.find("<svg class=\"chart"), std::string::npos);
}

TEST(Html, WritesBothFiles) {
  const TemporaryFolder folder;
  const std::vector<report::Run> runs = six_runs();
  const Comparison comparison = compare(runs);
  write_report(folder / "out/deep", "t", runs, comparison);
  EXPECT_EQ(read_file(folder / "out/deep/report.html"), render_html("t", runs, comparison));
  EXPECT_EQ(read_file(folder / "out/deep/report.json"), render_json(comparison));
  EXPECT_THROW(write_report(folder.write("file", "") / "below", "t", runs, comparison), Error);
}

}  // namespace
}  // namespace octet::report
