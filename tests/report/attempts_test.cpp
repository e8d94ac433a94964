#include "octet/report/attempts.h"

#include <gtest/gtest.h>

#include "report/runs.h"

namespace octet::report {
namespace {

telemetry::Attempt attempt(std::int64_t number, const std::string& started, std::int64_t from, std::int64_t to, double total) {
  return {.number = number,
          .started = started,
          .from_step = from,
          .ended = "later",
          .code = 137,
          .what = "rank 1 was <killed>",
          .last_step = to,
          .seconds = {{"training", 10}, {"first_step", 12}, {"total", total}}};
}

TEST(DrawAttempts, HasTheShareATimelineAndATable) {
  telemetry::Attempt last = attempt(2, "2026-11-25T10:02:00Z", 90, 190, 110);
  last.code = 0;
  const std::string page = draw_attempts({attempt(1, "2026-11-25T10:00:00Z", 0, 100, 110), last});
  // 90 + 100 of 100 s each are kept, of 230 s.
  EXPECT_TRUE(has(page, "<p>82.6% of 3m50s were productive.</p>")) << page.substr(0, 200);
  EXPECT_TRUE(has(page, "attempt 1: steps 0 to 100\nrank 1 was &lt;killed&gt;</title>"));
  EXPECT_TRUE(has(page, "attempt 2: steps 90 to 190\ndone</title>"));
  EXPECT_TRUE(has(page, "<td data-column=\"lost steps\">10</td>"));
  EXPECT_TRUE(has(page, "<td data-column=\"first step after\">12s</td>"));
  EXPECT_TRUE(has(page, "x=\"521.74\"")) << "the second begins after 120 of 230 s";
}

TEST(DrawAttempts, ShowsHowLongAFaultWasNotNoticed) {
  telemetry::Attempt first = attempt(1, "2026-11-25T10:00:00Z", 0, 100, 110);
  first.seconds["last_step"] = 60;
  first.seconds["stop"] = 5;
  const std::string page = draw_attempts({first});
  EXPECT_TRUE(has(page, "<p>45.5% of 1m50s were productive.</p>")) << page.substr(0, 200);
  EXPECT_TRUE(has(page, "from the last step until the fault was noticed</td><td data-column=\"time\">45s</td>")) << page;
  // In the timeline it follows the steps, which end after 60 of 110 s.
  EXPECT_TRUE(has(page, "<rect class=\"t7\" x=\"545.45\" width=\"409.09\"")) << page;
}

// The second attempt was killed with its supervisor, so nobody knows how long it ran. The third goes back further than the
// second.
TEST(DrawAttempts, LosesStepsToAnyLaterAttempt) {
  telemetry::Attempt second = attempt(2, "2026-11-25T10:02:00Z", 90, 0, 0);
  second.ended = "";
  const std::string page =
      draw_attempts({attempt(1, "2026-11-25T10:00:00Z", 0, 100, 110), second, attempt(3, "2026-11-25T10:05:00Z", 20, 120, 110)});
  EXPECT_TRUE(has(page, "<td data-column=\"lost steps\">80</td>")) << page;
  EXPECT_TRUE(has(page, "<td data-column=\"lost steps\">0</td>"));
  EXPECT_FALSE(has(page, "<td data-column=\"lost steps\">-"));
  EXPECT_TRUE(has(page, "no ranks ran, or no supervisor recorded them"));
}

TEST(DrawAttempts, IsNothingUntilOneHasEnded) {
  EXPECT_EQ(draw_attempts({}), "");
  EXPECT_EQ(draw_attempts({{.number = 1, .started = "2026-11-25T10:00:00Z"}}), "");
}

}  // namespace
}  // namespace octet::report
