#include "octet/report/watch.h"

#include <gtest/gtest.h>

#include "octet/report/html.h"
#include "report/runs.h"

namespace octet::report {
namespace {

TEST(Watch, SaysHowFarEachRunIs) {
  std::vector<report::Run> runs{make_run("bf16", "bf16", 300, 1, 100), make_run("fp8_block", "fp8_block", 120, 1.01, 120)};
  for (report::Run& run : runs) run.info.steps = 300;
  runs[1].metrics.back().eta_s = 90;
  const std::string page = watched_page("A title", runs, compare(runs), "14:02:11");
  EXPECT_TRUE(has(page, "style=\"width:100.00%\"></i></span><span class=\"where\">step 300 of 300, done</span>"));
  EXPECT_TRUE(has(page, "style=\"width:40.00%\"></i></span><span class=\"where\">step 120 of 300, about 1m30s left</span>"));
  EXPECT_TRUE(has(page, "The newest record was written at 14:02:11."));
  EXPECT_TRUE(has(page, "<h2>Loss</h2>")) << "the report itself";
}

TEST(Watch, AsksNobodyElseForAnything) {
  const std::vector<report::Run> runs{make_run("bf16", "bf16", 30, 1, 100)};
  const std::string page = watched_page("A title", runs, compare(runs), "");
  EXPECT_TRUE(has(page, "<script src=\"/watch.js\" defer></script>"));
  for (const char* other : {"http:", "https:", "//", "<link", "@import", "url("}) EXPECT_FALSE(has(page, other)) << other;
  EXPECT_FALSE(has(kWatchScript, "innerHTML"));
  EXPECT_FALSE(has(render_html("A title", runs, compare(runs)), "watch.js")) << "a page that is written has no script";
}

TEST(Watch, TextOfTheRunsIsEscaped) {
  std::vector<report::Run> runs{make_run("<script>alert(1)</script>", "bf16", 30, 1, 100)};
  EXPECT_FALSE(has(watched_page("</title><script>", runs, compare(runs), "<b>"), "<script>"));
  EXPECT_FALSE(has(waiting_page("<script>", "<b>out</b>: no metrics.jsonl"), "<b>"));
}

TEST(Watch, WaitsForTheFirstStep) {
  const std::string page = waiting_page("out", "out: no metrics.jsonl");
  EXPECT_TRUE(has(page, "Waiting: out: no metrics.jsonl"));
  EXPECT_TRUE(has(page, "/watch.js"));
  report::Run begun = make_run("bf16", "bf16", 1, 1, 100);
  begun.info.steps = 0;
  EXPECT_TRUE(has(watched_page("t", std::vector{begun}, compare(std::vector{begun}), ""), "step 1 of 1, done"));
}

}  // namespace
}  // namespace octet::report
