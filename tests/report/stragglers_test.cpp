#include "octet/report/stragglers.h"

#include <gtest/gtest.h>

#include "octet/base/require.h"
#include "report/runs.h"

namespace octet::report {
namespace {

telemetry::StragglerRecord record(std::int64_t rank, const char* time, const char* event, std::int64_t since,
                                  double slower = 18) {
  return {.step = since + 40,
          .time = time,
          .rank = rank,
          .name = concat("rank ", rank, " (<node1>)"),
          .event = event,
          .since_step = since,
          .slower_pct = slower};
}

TEST(DrawStragglers, HasABarAndARowForEach) {
  telemetry::StragglerRecord hot = record(5, "2026-11-25T10:01:00Z", "slow", 100);
  hot.clock_mhz = 1215;
  hot.clock_others_mhz = 1755;
  hot.slowed_by = "heat";
  const std::string page = draw_stragglers(
      {hot, record(7, "2026-11-25T10:02:00Z", "slow", 200, 41), record(5, "2026-11-25T10:03:00Z", "recovered", 300)}, {}, 400);
  EXPECT_TRUE(has(page, "rank 5 (&lt;node1&gt;)")) << page;
  EXPECT_TRUE(has(page, "x=\"50.0\" width=\"100.0\"")) << "steps 100 to 300 of 400 on 200 pixels";
  EXPECT_TRUE(has(page, "x=\"100.0\" width=\"100.0\"")) << "rank 7 until the end";
  EXPECT_TRUE(has(page, "<td data-column=\"recovered\">at step 300</td>")) << page;
  EXPECT_TRUE(has(page, "<td data-column=\"recovered\">no</td>"));
  EXPECT_TRUE(has(page, "<td data-column=\"slower\">41%</td>"));
  EXPECT_TRUE(has(page, "1,215 (others 1,755)"));
}

// Nobody records that a rank was slow until its process ended.
TEST(DrawStragglers, ABarEndsWithItsAttempt) {
  const telemetry::Attempt attempt{.started = "2026-11-25T10:00:00Z", .ended = "2026-11-25T10:05:00Z", .last_step = 250};
  const std::string page = draw_stragglers({record(7, "2026-11-25T10:02:00Z", "slow", 200)}, {attempt}, 400);
  EXPECT_TRUE(has(page, "x=\"100.0\" width=\"25.0\"")) << page;
}

TEST(DrawStragglers, IsNothingWithoutOne) { EXPECT_EQ(draw_stragglers({}, {}, 400), ""); }

}  // namespace
}  // namespace octet::report
