#include "octet/report/run.h"

#include <gtest/gtest.h>

#include "octet/base/require.h"
#include "support/errors.h"
#include "support/folder.h"

namespace octet::report {
namespace {
using testing::TemporaryFolder;

TEST(ReadRun, FilesAndFolderName) {
  const TemporaryFolder folder;
  folder.write("a/metrics.jsonl", "{\"step\":1,\"loss\":5}\n{\"step\":2,\"loss\":4}\nrubbish\n");
  report::Run run = read_run(folder / "a/");
  EXPECT_EQ(run.info.name, "a");
  EXPECT_EQ(run.metrics.size(), 2u);
  EXPECT_TRUE(run.health.empty());
  EXPECT_EQ(run.broken_lines, 1);
  folder.write("a/run.json", R"({"name":"bf16","recipe":"bf16","tokens_per_step":2048})");
  folder.write("a/fp8_health.jsonl", "{\"step\":1,\"tensor\":\"l.x\",\"amax\":3}\n");
  run = read_run(folder / "a");
  EXPECT_EQ(run.info.name, "bf16");
  EXPECT_EQ(run.info.tokens_per_step, 2048);
  ASSERT_EQ(run.health.size(), 1u);
  EXPECT_EQ(run.health[0].amax, 3);
}

TEST(ReadRun, TheLaterRecordOfAStepCounts) {
  const TemporaryFolder folder;
  folder.write("metrics.jsonl", "{\"step\":1,\"loss\":5}\n{\"step\":2,\"loss\":4}\n{\"step\":3,\"loss\":9}\n{\"step\":2,\"loss\":3}\n");
  const report::Run run = read_run(folder.path());
  ASSERT_EQ(run.metrics.size(), 2u);
  EXPECT_EQ(run.metrics[1].step, 2);
  EXPECT_EQ(run.metrics[1].loss, 3);
}

// Lines of every tenth step take a second a step. The second attempt went on from step 503 and logged the mean of seven steps, of
// which the first took a minute. The third went back to step 490, so it did all steps of the lines 500 and 510 anew.
TEST(TrainingTimes, TheFirstLineAfterAResumeCoversTheStepsOfItsAttempt) {
  report::Run run;
  for (std::int64_t step = 10; step <= 600; step += 10) run.metrics.push_back({.step = step, .step_time_s = 1});
  run.metrics[50].step_time_s = 66.0 / 7;
  const auto attempt = [](std::int64_t from) { return telemetry::Attempt{.from_step = from, .seconds = {{"training", 1}}}; };
  run.attempts = {attempt(0), attempt(503)};
  EXPECT_NEAR(training_times(run)[49], 500, 1e-9);
  EXPECT_NEAR(training_times(run)[50], 503 + 66, 1e-9);
  EXPECT_NEAR(training_times(run).back(), 503 + 66 + 90, 1e-9);
  run.attempts.push_back(attempt(490));
  EXPECT_NEAR(training_times(run)[50], 500 + 660.0 / 7, 1e-9);
  run.attempts = {attempt(0), {.from_step = 503}};  // ended before it trained
  EXPECT_NEAR(training_times(run)[50], 500 + 660.0 / 7, 1e-9);
}

TEST(ReadRun, WhatIsNoRunSaysSo) {
  const TemporaryFolder folder;
  const auto message = [&](const std::string& name) {
    return testing::error_of(ExitCode::data, [&] { read_run(folder / name); });
  };
  EXPECT_NE(message("absent").find("absent/metrics.jsonl: No such file"), std::string::npos) << message("absent");
  folder.write("empty/metrics.jsonl", "{\"step\":1,\"lo");
  EXPECT_NE(message("empty").find("empty/metrics.jsonl: holds no step"), std::string::npos) << message("empty");
  folder.write("bad/metrics.jsonl", "{\"step\":1}\n");
  folder.write("bad/run.json", "{");
  EXPECT_NE(message("bad").find("bad/run.json: "), std::string::npos) << message("bad");
}

}  // namespace
}  // namespace octet::report
