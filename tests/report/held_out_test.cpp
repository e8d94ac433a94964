#include "octet/report/held_out.h"

#include <gtest/gtest.h>

#include <cmath>

#include "octet/base/json.h"
#include "octet/report/html.h"
#include "report/runs.h"

namespace octet::report {
namespace {

// BF16 and FP8 evaluate "chat" and "code<". FP8 alone evaluates "late".
std::vector<report::Run> runs_with_sets() {
  std::vector<report::Run> runs{make_run("bf16", "bf16", 30, 1, 100), make_run("fp8_delayed", "fp8_delayed", 30, 1, 150)};
  for (const std::size_t i : {0, 1}) {
    for (telemetry::StepMetrics& line : runs[i].metrics) {
      const double at = 8 / static_cast<double>(line.step);
      if (line.step % 8 == 0) line.eval_losses = {{"chat", 2 + at}, {"code<", (i == 0 ? 1.0 : 1.01) * (4 + at)}};
      if (line.step % 8 == 0 && i == 1) line.eval_losses.emplace_back("late", line.step == 24 ? NAN : 1.0);
    }
  }
  return runs;
}

TEST(HeldOut, EachSetIsComparedByItself) {
  const Comparison c = compare(runs_with_sets());
  EXPECT_EQ(held_out_names(c), (std::vector<std::string>{"chat", "code<", "late"}));
  // The last evaluation was after step 24.
  EXPECT_DOUBLE_EQ(number_named(c.rows[0].summary.eval_losses, "chat"), 2 + 8.0 / 24);
  EXPECT_TRUE(c.rows[0].eval_losses_pct.empty()) << "the baseline";
  EXPECT_NEAR(number_named(c.rows[1].eval_losses_pct, "chat"), 0, 1e-12);
  EXPECT_NEAR(number_named(c.rows[1].eval_losses_pct, "code<"), 1, 1e-12);
  EXPECT_TRUE(std::isnan(number_named(c.rows[1].eval_losses_pct, "late")));
}

TEST(HeldOut, IsInTextPageAndJson) {
  const std::vector<report::Run> runs = runs_with_sets();
  const Comparison c = compare(runs);
  const std::string text = render_text(c), html = render_html("Sets", runs, c);
  EXPECT_TRUE(has(text,
                  "held-out loss    chat  higher   code<  higher  late  higher\n"
                  "-----------------------------------------------------------\n"
                  "bf16           2.3333       -  4.3333       -     -       -\n"
                  "fp8_delayed    2.3333   0.00%  4.3767  +1.00%     -       -\n"))
      << text;
  EXPECT_TRUE(has(html, "<h2>Held-out sets</h2>"));
  EXPECT_TRUE(has(html, "<th>chat</th><th>code&lt;</th><th>late</th>"));
  EXPECT_TRUE(has(html, "<td data-column=\"code&lt;\">4.3767<small class=\"bad\">+1.00%</small></td>"));
  EXPECT_TRUE(has(html, "aria-label=\"held-out loss of code&lt; over the steps\""));
  EXPECT_FALSE(has(html, "nan"));
  const auto rows = nlohmann::json::parse(render_json(c))["rows"];
  EXPECT_EQ(rows[0]["eval_losses_pct"], nullptr);
  EXPECT_NEAR(rows[1]["eval_losses"]["code<"].get<double>(), 1.01 * (4 + 8.0 / 24), 1e-12);
  EXPECT_NEAR(rows[1]["eval_losses_pct"]["code<"].get<double>(), 1, 1e-9);
  EXPECT_EQ(rows[1]["eval_losses"]["late"], nullptr);
}

TEST(HeldOut, NothingIsShownWithoutNamedSets) {
  const std::vector<report::Run> runs{make_run("bf16", "bf16", 30, 1, 100)};
  const Comparison c = compare(runs);
  EXPECT_EQ(render_held_out(c), "");
  EXPECT_FALSE(has(render_html("None", runs, c), "Held-out sets"));
  EXPECT_EQ(nlohmann::json::parse(render_json(c))["rows"][0]["eval_losses"], nullptr);
}

}  // namespace
}  // namespace octet::report
