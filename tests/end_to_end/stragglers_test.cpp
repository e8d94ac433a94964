// A rank that is slower than the others is named, in the log, in `octet status`, in the report and in stragglers.jsonl.
#include <csignal>
#include <functional>

#include "support/slow_process.h"
#include "support/tiny_run.h"

namespace octet::testing {
namespace {

class Stragglers : public ::testing::Test {
 protected:
  // Other work on this machine slows down ranks, too. So only a rank at less than 0.4 of the median's speed counts, and the model
  // is large enough that a step is mostly computation: a rank that stands still while it waits is not slow.
  static constexpr const char* kOptions =
      "--metrics.tensorboard=false --metrics.log_freq=2 --training.steps=1000000 --checkpoint.interval=0 --health.straggler=0.4 "
      "--model.hidden_size=128 --model.intermediate_size=256 --evaluation.interval=0 ";
  bool comes_true(const std::function<bool()>& condition) const {
    for (int tries = 0; tries < 1200; ++tries) {
      if (condition()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    return condition();
  }
  std::vector<Json> events(const std::string& event, int rank) const {
    std::vector<Json> found;
    if (!std::filesystem::exists(run_ / "out/stragglers.jsonl")) return found;
    for (const Json& line : read_lines(run_ / "out/stragglers.jsonl")) {
      if (line["event"] == event && line["rank"] == rank) found.push_back(line);
    }
    return found;
  }
  TinyRun run_;
};

TEST_F(Stragglers, ASlowRankIsNamedUntilItHasRecovered) {
  Process process(concat("launch -n 3 --supervise -- train run.toml --training.global_batch_size=12 ", kOptions), run_.path());
  PendingResult end(process);
  ASSERT_TRUE(comes_true([&] { return std::filesystem::exists(run_ / "out/metrics.jsonl"); }));
  {
    const SlowProcess slow(run_.pid_of_rank(1));
    ASSERT_TRUE(comes_true([&] { return !events("slow", 1).empty(); }));
    const Json event = events("slow", 1).front();
    EXPECT_GT(event["slower_pct"], 60.0);
    EXPECT_GT(event["own_s"].get<double>(), 2 * event["median_s"].get<double>());
    EXPECT_LT(event["since_step"], event["step"]);
    EXPECT_EQ(event["clock_mhz"], nullptr) << "there is no GPU";
    const Json status = json_of(run_.run("status out --json").out);
    ASSERT_GE(status["stragglers"].size(), 1u);
    ASSERT_EQ(status["ranks"].size(), 3u);
    EXPECT_GT(status["ranks"][1]["compute_s"], status["ranks"][0]["compute_s"]);
    EXPECT_TRUE(says(run_.run("status out").out, "  straggler   rank 1 ("));
  }
  ASSERT_TRUE(comes_true([&] { return !events("recovered", 1).empty(); }));
  process.send(SIGTERM);
  const ProgramResult result = end.get();
  EXPECT_EQ(result.code, 75) << result.err;
  EXPECT_TRUE(says(result.err, "% slower than the median since step ")) << result.err;
  EXPECT_TRUE(says(result.err, "is as fast as the others again since step ")) << result.err;
  ASSERT_EQ(run_.run("report out").code, 0);
  EXPECT_TRUE(says(read_file(run_ / "out/report.html"), "<h2>Stragglers</h2>"));
}

// No supervisor is needed. 0 switches it off.
TEST_F(Stragglers, NobodyIsNamedIfNobodyAsks) {
  Process process(concat("launch -n 2 -- train run.toml --training.global_batch_size=8 ", kOptions, "--health.straggler=0"),
                  run_.path());
  ASSERT_TRUE(process.read_to_step(1));
  const SlowProcess slow(run_.pid_of_rank(1));
  ASSERT_TRUE(process.read_to_step(14));
  EXPECT_FALSE(std::filesystem::exists(run_ / "out/stragglers.jsonl"));
}

}  // namespace
}  // namespace octet::testing
