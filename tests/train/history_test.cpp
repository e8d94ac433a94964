#include "octet/train/history.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "octet/base/file.h"
#include "octet/telemetry/attempts.h"
#include "support/errors.h"
#include "support/folder.h"

namespace octet::train {
namespace {

namespace fs = std::filesystem;
using testing::contains;
using testing::error_of;
using testing::names_in;
using testing::TemporaryFolder;

void write_run(const TemporaryFolder& folder) {
  for (const char* name :
       {"checkpoints/step-00000002/manifest.json", "checkpoints/step-00000004/manifest.json",
        "checkpoints/damaged/step-00000009/manifest.json", "checkpoints/tokenizer/tokenizer.json", "model/config.json",
        "fp8_health.jsonl", "tensorboard/events", "run.json", "report.html", "notes.txt"}) {
    folder.write(name, name);
  }
  folder.write("metrics.jsonl", "{\"step\":1}\n{\"step\":5}\n{\"st");
}

TEST(History, SaysWhatIsThere) {
  const TemporaryFolder folder;
  EXPECT_TRUE(history_of(folder / "absent", 0).empty());
  EXPECT_TRUE(history_of(folder.path(), 0).empty());
  folder.write("metrics.jsonl", "{\"step\":1}\n{\"step\":5}\n{\"st");
  EXPECT_EQ(history_of(folder.path(), 0).text(), "a run up to step 5 (metrics)");
  write_run(folder);
  const History history = history_of(folder.path(), 0);
  EXPECT_EQ(history.checkpoints, (std::vector<std::int64_t>{4, 2}));
  EXPECT_EQ(history.text(), "a run up to step 4 (2 checkpoints, metrics, a model)");
}

TEST(History, WhatCannotBeReadIsAnError) {
  const TemporaryFolder folder;
  for (const char* name : {"checkpoints", "metrics.jsonl", "model"}) {
    fs::create_symlink(name, folder / name);
    EXPECT_TRUE(contains(error_of(ExitCode::data, [&] { history_of(folder.path(), 0); }), "Too many levels of symbolic links"))
        << name;
    fs::remove(folder / name);
  }
}

TEST(History, IsMovedWholeAndEachTimeToANewName) {
  const TemporaryFolder folder;
  std::vector<std::string> names;
  for (int round = 0; round < 3; ++round) {
    write_run(folder);
    const fs::path to = set_aside(folder.path(), history_of(folder.path(), 0));
    EXPECT_EQ(to.parent_path(), folder / "history");
    EXPECT_TRUE(contains(to.filename().string(), "Z-step-4"));
    EXPECT_EQ(names_in(to), (std::vector<std::string>{"checkpoints", "fp8_health.jsonl", "metrics.jsonl", "model", "report.html",
                                                      "run.json", "tensorboard"}));
    EXPECT_EQ(names_in(to / "checkpoints").size(), 4u) << "damaged ones and the tokenizer, too";
    EXPECT_EQ(names_in(folder.path()), (std::vector<std::string>{"history", "notes.txt"}));
  }
  EXPECT_EQ(names_in(folder / "history").size(), 3u);
}

TEST(History, OfAnOlderCheckpointOnlyWhatComesAfterIsMoved) {
  const TemporaryFolder folder;
  write_run(folder);
  const fs::path to = set_aside(folder.path(), history_of(folder.path(), 0), 2);
  EXPECT_EQ(names_in(to / "checkpoints"), (std::vector<std::string>{"step-00000004", "tokenizer"}));
  EXPECT_EQ(names_in(folder / "checkpoints"), (std::vector<std::string>{"damaged", "step-00000002", "tokenizer"}));
  for (const char* both : {"metrics.jsonl", "fp8_health.jsonl", "tensorboard/events", "run.json"}) {
    EXPECT_TRUE(fs::exists(to / both) && fs::exists(folder / both)) << both;
  }
  EXPECT_TRUE(fs::exists(to / "model/config.json"));
  EXPECT_FALSE(fs::exists(folder / "model"));
}

TEST(History, OfAbandonedStepsOnlyTheirLinesAreCopied) {
  const TemporaryFolder folder;
  write_run(folder);
  folder.write("fp8_health.jsonl", "{\"step\":2,\"tensor\":\"a\"}\n{\"step\":4,\"tensor\":\"a\"}\n");
  const fs::path to = set_abandoned_aside(folder.path(), 5, 2);
  EXPECT_TRUE(contains(to.filename().string(), "Z-step-5"));
  EXPECT_EQ(read_file(to / "metrics.jsonl"), "{\"step\":5}\n{\"st");
  EXPECT_EQ(read_file(to / "fp8_health.jsonl"), "{\"step\":4,\"tensor\":\"a\"}\n");
  EXPECT_EQ(names_in(to / "tensorboard").size(), 1u);
  EXPECT_FALSE(fs::exists(to / "tensorboard/events"));
  EXPECT_EQ(names_in(to / "checkpoints"), (std::vector<std::string>{"step-00000004", "tokenizer"}));
  EXPECT_EQ(names_in(folder / "checkpoints"), (std::vector<std::string>{"damaged", "step-00000002", "tokenizer"}));
  EXPECT_EQ(read_file(folder / "metrics.jsonl"), "{\"step\":1}\n{\"step\":5}\n{\"st");
  EXPECT_TRUE(fs::exists(to / "run.json") && fs::exists(folder / "run.json") && fs::exists(folder / "tensorboard/events"));
  EXPECT_TRUE(fs::exists(to / "model/config.json"));
}

// The disk of the run folder may be too small for checkpoints.
TEST(History, CheckpointsBehindALinkStayOnTheirDisk) {
  for (const std::optional<std::int64_t> kept : {std::optional<std::int64_t>(), std::optional<std::int64_t>(2)}) {
    const TemporaryFolder folder;
    fs::create_directories(folder / "run");
    fs::create_directories(folder / "disk");
    fs::create_directory_symlink("../disk", folder / "run/checkpoints");
    folder.write("run/checkpoints/step-00000002/manifest.json", "");
    folder.write("run/checkpoints/step-00000004/manifest.json", "");
    folder.write("run/metrics.jsonl", "{\"step\":1}\n{\"step\":5}\n");
    const fs::path to =
        kept ? set_abandoned_aside(folder / "run", 5, *kept) : set_aside(folder / "run", history_of(folder / "run", 0));
    std::vector<std::string> moved = {"step-00000002", "step-00000004"};
    if (kept) moved.erase(moved.begin());
    EXPECT_EQ(names_in(to / "checkpoints"), moved);
    EXPECT_EQ(fs::canonical(to / "checkpoints"), fs::canonical(folder / "disk/history" / to.filename()));
    EXPECT_EQ(history_of(to, 0).checkpoints.front(), 4);
    ASSERT_TRUE(fs::is_symlink(folder / "run/checkpoints")) << "for the checkpoints of the next run";
    EXPECT_EQ(history_of(folder / "run", 0).checkpoints, kept ? std::vector<std::int64_t>{2} : std::vector<std::int64_t>());
  }
}

TEST(History, WhatFailsBeforeAMoveLeavesNothing) {
  const TemporaryFolder folder;
  write_run(folder);
  fs::create_directories(folder / "stragglers.jsonl");
  error_of(ExitCode::data, [&] { set_abandoned_aside(folder.path(), 5, 2); });
  EXPECT_TRUE(names_in(folder / "history").empty());
  EXPECT_TRUE(fs::exists(folder / "model/config.json"));
}

TEST(History, TakesTheAttemptsOfOtherJobsAlong) {
  const TemporaryFolder folder;
  write_run(folder);
  const telemetry::Attempts attempts(folder.path());
  for (const char* job : {"before", "before", "now"}) {
    telemetry::Attempt attempt{.job = job};
    attempts.begin(attempt);
  }
  ::setenv("OCTET_ATTEMPT", "now:3", 1);
  const fs::path to = set_aside(folder.path(), history_of(folder.path(), 0));
  EXPECT_EQ(names_in(to / "attempts"), (std::vector<std::string>{"00000001.json", "00000002.json"}));
  EXPECT_EQ(names_in(folder / "attempts"), std::vector<std::string>{"00000003.json"});

  ::unsetenv("OCTET_ATTEMPT");  // a run without a supervisor
  EXPECT_EQ(names_in(set_aside(folder.path(), {}) / "attempts"), std::vector<std::string>{"00000003.json"});
  EXPECT_TRUE(attempts.read().empty());
}

}  // namespace
}  // namespace octet::train
