#include "octet/app/run_metrics.h"

#include <gtest/gtest.h>

#include <thread>

#include "app/http_get.h"
#include "octet/app/run_status.h"
#include "octet/base/require.h"

namespace octet::app {
namespace {

using octet::testing::http_get;

class RunMetricsTest : public ::testing::Test {
 protected:
  static bool says(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }
  std::string text(const std::vector<telemetry::Attempt>& attempts = {}, const std::vector<GpuReading>& gpus = {}) {
    return metrics_text(pages_.first(2), attempts, gpus, highest_);
  }

  telemetry::RankPages pages_{2};
  HighestCounts highest_;
};

TEST_F(RunMetricsTest, LeavesOutWhatNobodyKnows) {
  pages_.page(0).enter(telemetry::Phase::joining);
  const std::string text = this->text();
  EXPECT_TRUE(says(text, "octet_step{rank=\"0\"} 0\n")) << text;
  EXPECT_FALSE(says(text, "rank=\"1\"")) << "rank 1 has not been started";
  EXPECT_FALSE(says(text, "octet_loss")) << text;
  EXPECT_FALSE(says(text, "octet_checkpoint")) << text;
  EXPECT_FALSE(says(text, "octet_rank_compute")) << text;
  EXPECT_FALSE(says(text, "octet_gpu")) << text;
  EXPECT_TRUE(text.ends_with("# EOF\n"));
}

TEST_F(RunMetricsTest, CountsRestartsByTheirCode) {
  const auto ended = [](int code, const char* next) {
    telemetry::Attempt attempt;
    attempt.code = code;
    attempt.next = next;
    return attempt;
  };
  const std::string text =
      this->text({ended(137, "restarts"), ended(80, "restarts in 5 s"), ended(137, "restarts"), ended(2, "stops")});
  EXPECT_TRUE(says(text, "octet_restarts_total{code=\"137\"} 2\n")) << text;
  EXPECT_TRUE(says(text, "octet_restarts_total{code=\"80\"} 1\n")) << text;
  EXPECT_FALSE(says(text, "code=\"2\"")) << text;
}

// The second attempt has fewer tokens because it goes on from a checkpoint. It began within the second in which the first one
// ended, and starts are known to the second.
TEST_F(RunMetricsTest, CountersDoNotFall) {
  const auto logged = [&](std::int64_t tokens) {
    pages_.page(0).tokens = tokens;
    pages_.page(0).step_s = 0.5;
  };
  telemetry::Attempt first{.started = "2026-11-25T10:00:00Z", .ended = "2026-11-25T10:00:05Z", .seconds = {{"total", 4.5}}};
  telemetry::Attempt second{.started = "2026-11-25T10:00:05Z", .ended = "2026-11-25T10:00:10Z", .seconds = {{"total", 4.5}}};
  telemetry::Attempt third{.started = "2026-11-25T10:00:09Z", .ended = "2026-11-25T10:00:15Z", .seconds = {{"total", 5.0}}};
  logged(1024);
  const std::string before = text({first, second});
  EXPECT_TRUE(says(before, "octet_tokens_total 1024\n")) << before;
  EXPECT_TRUE(says(before, "octet_lost_seconds_total{part=\"between\"} 0.5\n")) << before;
  logged(512);
  const std::string after = text({first, second, third});
  EXPECT_TRUE(says(after, "octet_tokens_total 1024\n")) << after;
  EXPECT_TRUE(says(after, "octet_lost_seconds_total{part=\"between\"} 0.5\n")) << after;
  logged(1536);
  EXPECT_TRUE(says(text(), "octet_tokens_total 1536\n"));
}

TEST_F(RunMetricsTest, HasTheOwnTimeOfEachRank) {
  pages_.page(1).own_s = 0.25;
  const std::string text = this->text();
  EXPECT_TRUE(says(text, "octet_rank_compute_seconds{rank=\"1\"} 0.25\n")) << text;
  EXPECT_FALSE(says(text, "octet_rank_compute_seconds{rank=\"0\"}")) << text;
}

// A run can go on from a step of which every rank has a snapshot.
TEST_F(RunMetricsTest, TheNewestSnapshotIsThatOfAllRanks) {
  const auto snapshot = [&](int rank, std::int64_t step, double age_s) {
    pages_.page(rank).enter(telemetry::Phase::training);
    pages_.page(rank).snapshot_step = step;
    pages_.page(rank).snapshot_ns = telemetry::monotonic_ns() - static_cast<std::int64_t>(age_s * 1e9);
  };
  EXPECT_FALSE(newest_snapshot(pages_.first(2)));
  snapshot(0, 40, 100);
  ASSERT_TRUE(newest_snapshot(pages_.first(2))) << "rank 1 runs on another host, which does not tell this one";
  snapshot(1, 0, 0);
  EXPECT_FALSE(newest_snapshot(pages_.first(2)));
  EXPECT_FALSE(says(text(), "octet_checkpoint_age")) << "neither in memory nor in storage";
  snapshot(1, 30, 300);
  EXPECT_EQ(newest_snapshot(pages_.first(2))->step, 30);
  EXPECT_NEAR(newest_snapshot(pages_.first(2))->age_s, 300, 10);
  snapshot(1, 40, 90);
  EXPECT_NEAR(newest_snapshot(pages_.first(2))->age_s, 90, 10) << "it is complete once the last rank has it";
  EXPECT_TRUE(says(text(), "octet_checkpoint_age_seconds{place=\"memory\"} 9"));
}

TEST_F(RunMetricsTest, HasWhatNvmlSaysOfEachGpu) {
  const std::string text =
      this->text({}, {{.clock_mhz = 1755, .power_w = 612.5, .xids = 0}, {}, {.temperature_c = 71, .xids = 3}});
  EXPECT_TRUE(says(text, "octet_gpu_clock_hertz{gpu=\"0\"} 1755000000\n")) << text;
  EXPECT_TRUE(says(text, "octet_gpu_power_watts{gpu=\"0\"} 612.5\n")) << text;
  EXPECT_TRUE(says(text, "octet_gpu_temperature_celsius{gpu=\"2\"} 71\n")) << text;
  EXPECT_TRUE(says(text, "octet_gpu_xid_total{gpu=\"0\"} 0\noctet_gpu_xid_total{gpu=\"2\"} 3\n")) << text;
  EXPECT_FALSE(says(text, "gpu=\"1\"")) << "NVML says nothing of it";
}

TEST_F(RunMetricsTest, ServesBothPages) {
  RunMetrics metrics("127.0.0.1", 0, 60, pages_.first(2));
  pages_.page(0).enter(telemetry::Phase::training);
  pages_.page(0).finish_step(3);
  EXPECT_TRUE(
      says(http_get(metrics.port(), "/metrics"), "Content-Type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\n"));
  EXPECT_TRUE(says(http_get(metrics.port(), "/metrics"), "octet_step{rank=\"0\"} 3\n"));
  EXPECT_TRUE(http_get(metrics.port(), "/healthz").starts_with("HTTP/1.1 200 "));
  EXPECT_TRUE(says(http_get(metrics.port(), "/healthz"), "training after step 3\n"));
  EXPECT_TRUE(http_get(metrics.port(), "/other").starts_with("HTTP/1.1 404 "));
  EXPECT_TRUE(http_get(metrics.port(), "/metrics", "evil.example").starts_with("HTTP/1.1 403 "));
  metrics.end();
  EXPECT_TRUE(http_get(metrics.port(), "/healthz").starts_with("HTTP/1.1 503 "));
  EXPECT_TRUE(says(http_get(metrics.port(), "/healthz"), "no rank runs\n"));
  metrics.begin(pages_.first(2));
  EXPECT_TRUE(http_get(metrics.port(), "/healthz").starts_with("HTTP/1.1 200 "));
}

TEST_F(RunMetricsTest, IsNotHealthyWhenNothingMoves) {
  RunMetrics metrics("127.0.0.1", 0, 0.01, pages_.first(1));
  EXPECT_TRUE(http_get(metrics.port(), "/healthz").starts_with("HTTP/1.1 200 "));
  std::this_thread::sleep_for(std::chrono::milliseconds(400));  // thirty times as long is allowed at the start
  EXPECT_TRUE(says(http_get(metrics.port(), "/healthz"), "no rank has moved for "));
  pages_.page(0).mark();
  EXPECT_TRUE(http_get(metrics.port(), "/healthz").starts_with("HTTP/1.1 200 "));
}

// The host of rank 1 does not know what rank 0 does.
TEST_F(RunMetricsTest, JudgesTheRanksOfThisHost) {
  RunMetrics metrics("127.0.0.1", 0, 0.01, pages_.first(2));
  metrics.begin(pages_.range(1, 1));
  pages_.page(1).enter(telemetry::Phase::training);
  for (int step = 6; step < 9; ++step) pages_.page(1).finish_step(step);
  pages_.page(1).start_step = 5;
  pages_.page(1).first_step_ns = pages_.page(1).changed_ns.load();  // steps take no time
  EXPECT_TRUE(says(http_get(metrics.port(), "/healthz"), "training after step 8\n"));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // less than a rank may take that has not trained yet
  EXPECT_TRUE(says(http_get(metrics.port(), "/healthz"), "no rank has moved for "));
  metrics.begin({});
  EXPECT_TRUE(says(http_get(metrics.port(), "/healthz"), "spare\n"));
  EXPECT_TRUE(http_get(metrics.port(), "/healthz").starts_with("HTTP/1.1 200 ")) << "a spare has nothing that could move";
}

// A scraper on another machine knows this one by its name.
TEST_F(RunMetricsTest, OnAnOpenAddressEveryHostMayAsk) {
  RunMetrics metrics("0.0.0.0", 0, 60, pages_.first(1));
  EXPECT_TRUE(http_get(metrics.port(), "/metrics", "node1:9400").starts_with("HTTP/1.1 200 "));
}

TEST_F(RunMetricsTest, SaysWhyItCannotListen) {
  const RunMetrics first("127.0.0.1", 0, 60, pages_.first(1));
  try {
    const RunMetrics second("127.0.0.1", first.port(), 60, pages_.first(1));
    ADD_FAILURE() << "two servers at one port";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::config);
    EXPECT_TRUE(says(error.what(), "set metrics.port and metrics.address")) << error.what();
  }
}

}  // namespace
}  // namespace octet::app
