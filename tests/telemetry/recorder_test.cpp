#include "octet/telemetry/recorder.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <csignal>
#include <vector>

#include "octet/base/require.h"
#include "octet/telemetry/jsonl.h"
#include "support/folder.h"

namespace octet::telemetry {
namespace {
using testing::TemporaryFolder;

StepMetrics full_line() {
  StepMetrics m;
  m.step = 120;
  m.loss = 4.8123;
  m.grad_norm = 0.8349;
  m.lr = 2.9e-4;
  m.tokens_per_s_per_gpu = 17011.8;
  m.tflops_per_gpu = 874.9;
  m.mfu = 0.8851;
  m.memory_peak_gib = 61.23;
  return m;
}

TEST(Console, TheLineOfTheContract) {
  StepMetrics m = full_line();
  m.eta_s = 192;
  EXPECT_EQ(console_line(m, {.total_steps = 1000}),
            "step 120/1000  loss 4.812  grad 0.83  lr 2.9e-04  17,012 tok/s/gpu  875 TFLOPS  mfu 88.5%  61.2 GiB  eta 3m12s");
}

TEST(Console, WhatIsUnknownIsLeftOut) {
  StepMetrics m = full_line();
  m.mfu.reset();
  m.tflops_per_gpu = 0.04712;
  m.memory_peak_gib = 0.05213;
  m.grad_norm = 0.00123;
  m.eval_loss = 4.7;
  m.skipped_steps = 2;
  EXPECT_EQ(
      console_line(m, {.total_steps = 1000, .worker = Worker::process}),
      "step 120/1000  loss 4.812  grad 0.0012  lr 2.9e-04  17,012 tok/s/process  0.0471 TFLOPS  53.4 MiB  eval 4.700  skipped 2");
  m.step_time_s = 2;
  m.pipeline_bubble_s = 0.25;
  EXPECT_NE(console_line(m, {.total_steps = 1000}).find("TFLOPS  bubble 12.5%  53.4 MiB"), std::string::npos);
  StepMetrics bad;
  bad.step = 1;
  EXPECT_EQ(console_line(bad, {.total_steps = 3}), "step 1/3  loss nan");
}

TEST(Console, NamedHeldOutSetsTakeThePlaceOfTheOne) {
  StepMetrics m;
  m.step = 1;
  m.loss = m.eval_loss.emplace(4.7);
  m.eval_losses = {{"chat", 4.7}, {"code", 3.21}};
  EXPECT_EQ(console_line(m, {.total_steps = 3}), "step 1/3  loss 4.700  eval chat 4.700, code 3.210");
}

TEST(Recorder, OneCallReachesEverySink) {
  const TemporaryFolder folder;
  std::vector<std::string> lines;
  Recorder recorder(
      {.directory = folder / "run", .console = [&](std::string_view line) { lines.emplace_back(line); }, .total_steps = 200});
  recorder.write_run_info({.name = "bf16"});
  recorder.write(full_line());
  const std::vector<HealthSample> samples{{.step = 120, .tensor = "a.x", .amax = 1}, {.step = 120, .tensor = "a.w", .amax = 2}};
  recorder.write(samples);
  recorder.write(std::vector<AttentionSample>{{.step = 120, .layer = "a", .lse_min = -3, .lse_max = 5}});
  recorder.sync();
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0].substr(0, 12), "step 120/200");
  EXPECT_EQ(read_jsonl<StepMetrics>(folder / "run/metrics.jsonl").records.at(0).loss, 4.8123);
  EXPECT_EQ(read_jsonl<HealthSample>(folder / "run/fp8_health.jsonl").records.at(1).tensor, "a.w");
  EXPECT_EQ(read_jsonl<AttentionSample>(folder / "run/attention_health.jsonl").records.at(0).lse_min, -3);
  EXPECT_EQ(read_run_info(folder / "run/run.json").name, "bf16");
  EXPECT_FALSE(std::filesystem::is_empty(folder / "run/tensorboard"));
  recorder.rewind(100);
  EXPECT_TRUE(read_jsonl<StepMetrics>(folder / "run/metrics.jsonl").records.empty());
  EXPECT_TRUE(read_jsonl<HealthSample>(folder / "run/fp8_health.jsonl").records.empty());
  EXPECT_TRUE(read_jsonl<AttentionSample>(folder / "run/attention_health.jsonl").records.empty());
}

TEST(Recorder, ExpertsHaveAFileIfThereAreAny) {
  const TemporaryFolder folder;
  Recorder recorder({.directory = folder / "run", .experts = true});
  recorder.write(
      std::vector<ExpertSample>{{.step = 5, .layer = "a", .chosen = {3, 0, 7}}, {.step = 9, .layer = "a", .chosen = {}}});
  recorder.sync();
  const auto read = read_jsonl<ExpertSample>(folder / "run/expert_loads.jsonl").records;
  ASSERT_EQ(read.size(), 2u);
  EXPECT_EQ(read[0].layer, "a");
  EXPECT_EQ(read[0].chosen, (std::vector<std::int64_t>{3, 0, 7}));
  EXPECT_TRUE(read[1].chosen.empty());
  recorder.rewind(5);
  EXPECT_EQ(read_jsonl<ExpertSample>(folder / "run/expert_loads.jsonl").records.size(), 1u);
  Recorder dense({.directory = folder / "dense"});
  dense.sync();
  EXPECT_FALSE(std::filesystem::exists(folder / "dense/expert_loads.jsonl"));
}

TEST(Recorder, OtherRanksWriteNothing) {
  const TemporaryFolder folder;
  Recorder recorder({.directory = folder / "run", .rank = 1, .console = [](std::string_view) { FAIL(); }});
  recorder.write_run_info({.name = "bf16"});
  recorder.write(full_line());
  recorder.rewind(1);
  recorder.sync();
  EXPECT_FALSE(std::filesystem::exists(folder / "run"));
}

TEST(Recorder, AFileWhereTheFolderShouldBe) {
  const TemporaryFolder folder;
  const auto file = folder.write("file", "");
  EXPECT_THROW(Recorder({.directory = file / "run"}), Error);
}

// /dev/full takes no byte: "No space left on device".
TEST(Recorder, ARunOutlivesAFullDisk) {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder / "run");
  std::filesystem::create_symlink("/dev/full", folder / "run/metrics.jsonl");
  std::vector<std::string> console;
  Recorder recorder({.directory = folder / "run",
                     .tensorboard = false,
                     .console = [&](std::string_view line) { console.emplace_back(line); },
                     .total_steps = 3});
  ::testing::internal::CaptureStderr();
  for (std::int64_t step = 1; step <= 3; ++step) {
    StepMetrics metrics;
    metrics.step = step;
    EXPECT_NO_THROW(recorder.write(metrics));
  }
  const std::string warnings = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(recorder.lost(), 3);
  EXPECT_EQ(console.size(), 3u);
  EXPECT_NE(
      warnings.find("metrics.jsonl: cannot write: No space left on device; training goes on (records not written so far: 1)"),
      std::string::npos)
      << warnings;
  EXPECT_EQ(std::count(warnings.begin(), warnings.end(), '\n'), 1) << warnings;
}

// The lines of a time when the disk was full are written, in their order, as soon as there is room, at the latest with the next
// checkpoint. Until then there must be no checkpoint, or a resumed run would lack them.
TEST(Recorder, LinesWaitUntilTheDiskHasRoom) {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder / "run");
  const std::filesystem::path file = folder / "run/metrics.jsonl";
  Recorder recorder({.directory = folder / "run", .tensorboard = false});
  const auto write = [&](std::int64_t step) {
    StepMetrics metrics;
    metrics.step = step;
    recorder.write(metrics);
  };
  const auto steps = [&] {
    std::vector<std::int64_t> found;
    for (const StepMetrics& line : read_jsonl<StepMetrics>(file).records) found.push_back(line.step);
    return found;
  };
  write(1);
  const auto unlimited = [] {
    rlimit limit{};
    ::getrlimit(RLIMIT_FSIZE, &limit);
    return limit;
  }();
  const auto before = ::signal(SIGXFSZ, SIG_IGN);
  const rlimit full{.rlim_cur = std::filesystem::file_size(file), .rlim_max = unlimited.rlim_max};  // EFBIG instead of ENOSPC
  ::setrlimit(RLIMIT_FSIZE, &full);
  ::testing::internal::CaptureStderr();
  write(2);
  write(3);
  EXPECT_THROW(recorder.sync(), Error);
  EXPECT_EQ(recorder.lost(), 2);
  ::setrlimit(RLIMIT_FSIZE, &unlimited);
  ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(steps(), (std::vector<std::int64_t>{1}));
  recorder.sync();
  EXPECT_EQ(recorder.lost(), 0);
  EXPECT_EQ(steps(), (std::vector<std::int64_t>{1, 2, 3}));
  ::setrlimit(RLIMIT_FSIZE, &full);
  ::testing::internal::CaptureStderr();
  write(4);
  ::setrlimit(RLIMIT_FSIZE, &unlimited);
  ::testing::internal::GetCapturedStderr();
  recorder.rewind(3);
  write(4);
  EXPECT_EQ(steps(), (std::vector<std::int64_t>{1, 2, 3, 4}));
  ::signal(SIGXFSZ, before);
}

// A disk that has room again for some of the lines that wait takes those. So a try that fails costs no more than the text of a
// few, however many wait.
TEST(Recorder, LinesThatWaitAreWrittenInPieces) {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder / "run");
  const std::filesystem::path file = folder / "run/metrics.jsonl";
  Recorder recorder({.directory = folder / "run", .tensorboard = false});
  const auto write = [&](std::int64_t step) {
    StepMetrics metrics;
    metrics.step = step;
    recorder.write(metrics);
  };
  rlimit unlimited{};
  ::getrlimit(RLIMIT_FSIZE, &unlimited);
  const auto before = ::signal(SIGXFSZ, SIG_IGN);
  const auto limit = [&](rlim_t bytes) {
    const rlimit limited{.rlim_cur = bytes, .rlim_max = unlimited.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limited);
  };
  write(1);
  const auto line = std::filesystem::file_size(file);
  limit(line);
  ::testing::internal::CaptureStderr();
  for (std::int64_t step = 2; step <= 1000; ++step) write(step);
  EXPECT_EQ(recorder.lost(), 999);
  limit(500 * line);
  EXPECT_THROW(recorder.sync(), Error);
  ::testing::internal::GetCapturedStderr();
  ::setrlimit(RLIMIT_FSIZE, &unlimited);
  ::signal(SIGXFSZ, before);
  const auto written = std::ssize(read_jsonl<StepMetrics>(file).records);
  EXPECT_GT(written, 300);
  EXPECT_LT(written, 501);
  EXPECT_EQ(recorder.lost(), 1000 - written);
  recorder.sync();
  EXPECT_EQ(recorder.lost(), 0);
  const std::vector<StepMetrics> lines = read_jsonl<StepMetrics>(file).records;
  ASSERT_EQ(lines.size(), 1000u);
  for (std::size_t i = 0; i < lines.size(); ++i) ASSERT_EQ(lines[i].step, static_cast<std::int64_t>(i) + 1);
}

TEST(Recorder, TensorBoardEventsWaitToo) {
  const TemporaryFolder folder;
  const auto write = [](Recorder& recorder, std::int64_t step) {
    StepMetrics metrics;
    metrics.step = step;
    metrics.loss = 3;
    recorder.write(metrics);
  };
  const auto events = [&](const char* run) {
    const std::filesystem::path files = folder / run / "tensorboard";
    return std::filesystem::file_size(files / testing::names_in(files).at(0));
  };
  Recorder full({.directory = folder / "full"}), other({.directory = folder / "other"});
  rlimit unlimited{};
  ::getrlimit(RLIMIT_FSIZE, &unlimited);
  const auto before = ::signal(SIGXFSZ, SIG_IGN);
  const rlimit limit{.rlim_cur = 1, .rlim_max = unlimited.rlim_max};  // EFBIG instead of ENOSPC
  ::setrlimit(RLIMIT_FSIZE, &limit);
  ::testing::internal::CaptureStderr();
  write(full, 1);
  write(full, 2);
  ::setrlimit(RLIMIT_FSIZE, &unlimited);
  ::signal(SIGXFSZ, before);
  ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(full.lost(), 4) << "two lines and two events";
  full.sync();
  EXPECT_EQ(full.lost(), 0) << "a checkpoint is not ahead of them";
  write(full, 3);
  for (std::int64_t step = 1; step <= 3; ++step) write(other, step);
  EXPECT_EQ(full.lost(), 0);
  EXPECT_EQ(events("full"), events("other"));
}

// Opening a pipe that nobody reads would wait for ever.
TEST(Recorder, RefusesAPipeInPlaceOfItsFile) {
  const std::filesystem::path folder = std::filesystem::path(::testing::TempDir()) / "recorder-pipe";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  ASSERT_EQ(::mkfifo((folder / "metrics.jsonl").c_str(), 0600), 0);
  try {
    Recorder({.directory = folder});
    ADD_FAILURE() << "a pipe was opened";
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()),
              (folder / "metrics.jsonl").string() + ": not a regular file. Records are written there: remove or rename it");
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace octet::telemetry
