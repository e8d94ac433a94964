// `octet launch --supervise` and disks that hang, are full or cannot be read.
#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <optional>
#include <string>
#include <thread>

#include "end_to_end/supervise_fixture.h"
#include "octet/checkpoint/steps.h"
#include "support/faults.h"

namespace octet::testing {
namespace {

// Storage that never answers: the rank is alive, and its connections are.
TEST_F(Supervise, ADiskThatHangsIsFound) {
  if (faults_library().empty()) GTEST_SKIP() << "no fault injection under a sanitizer, which must be loaded before every other library";
  write_text(run_ / "hangs", "");
  const std::string rule = concat("write */out/metrics.jsonl 9 hang while ", (run_ / "hangs").string());
  const std::string options = "--checkpoint.interval=2 --training.steps=20 ";
  ASSERT_EQ(run_.train("--metrics.tensorboard=false --run.output_dir=reference " + options).code, 0);
  Process process(command(options + "--comm.stall_s=1", 1), run_.path(), "exec " + with_faults(rule));
  ASSERT_TRUE(process.read_to_step(7));
  ASSERT_TRUE(node_says("no rank has moved for "));
  std::filesystem::remove(run_ / "hangs");
  const ProgramResult result = process.wait();
  ASSERT_EQ(result.code, 0) << result.err;
  const Json attempt = status()["attempts"][0];
  EXPECT_EQ(attempt["code"], 80) << result.err;
  double silent_s = 0;
  ASSERT_EQ(std::sscanf(attempt["what"].get<std::string>().c_str(), "no rank has moved for %lf s", &silent_s), 1) << attempt;
  EXPECT_GE(silent_s, 1.0) << "comm.stall_s";
  EXPECT_TRUE(same_outcome(outcome_of(run_ / "out"), outcome_of(run_ / "reference")));
  EXPECT_TRUE(says(read_file(run_ / "out/logs/rank-00000.log"), "octet::telemetry::"))
      << "the stack shows who writes\n" << read_file(run_ / "out/logs/rank-00000.log");
}

// A disk that is full for a while, from the third save on. Training goes on until three saves have failed. Neither the steps that
// are trained again nor the lines that had no room are lost.
TEST_F(Supervise, AFullDiskCostsNothingButTime) {
  if (faults_library().empty())
    GTEST_SKIP() << "no fault injection under a sanitizer, which must be loaded before every other library";
  const std::string full = (run_ / "full").string();
  const std::string rules =
      concat("write *rank-00000.safetensors* 3+ ENOSPC while ", full, ";write */out/metrics.jsonl 5+ ENOSPC while ", full);
  const std::string options = "--checkpoint.interval=2 --training.steps=30 --parallel.shard=2 ";
  ASSERT_EQ(run_.run("launch -n 2 -- train run.toml --metrics.tensorboard=false --run.output_dir=reference " + options).code, 0);
  write_text(full, "");
  Process process(command(options), run_.path(), "exec " + with_faults(rules));
  PendingResult end(process);
  EXPECT_TRUE(node_says("attempt 1 ended with code 1 "));
  std::filesystem::remove(full);
  const ProgramResult result = end.get();
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_TRUE(same_outcome(outcome_of(run_ / "out"), outcome_of(run_ / "reference")));
  EXPECT_TRUE(says(result.err,
                   ": cannot write: No space left on device; training goes on with the older ones (failed save 1 of 3); "
                   "a checkpoint takes "));
  EXPECT_TRUE(says(result.err, " are free, and the newest is of step ")) << result.err;
  EXPECT_TRUE(says(result.err, "3 saves in a row failed, and checkpoint.max_failed_saves = 3; a checkpoint takes "));
}

// While the disk is full, rank 0's metrics are not on it, so its snapshots do not count. Those of the other ranks must not push out
// the last one that all ranks have.
TEST_F(Supervise, AFullDiskKeepsTheSnapshotBeforeIt) {
  if (faults_library().empty())
    GTEST_SKIP() << "no fault injection under a sanitizer, which must be loaded before every other library";
  const std::string full = (run_ / "full").string();
  Process process(command("--checkpoint.interval=0 --checkpoint.memory_every=2 --training.steps=100000 "
                          "--training.global_batch_size=16 --lr_scheduler.decay=constant"),
                  run_.path(), "exec " + with_faults(concat("write */out/metrics.jsonl 1+ ENOSPC while ", full)));
  ASSERT_TRUE(process.read_to_step(12));
  write_text(full, "");
  ASSERT_TRUE(process.read_to_step(30));
  std::filesystem::remove(full);
  kill_rank(1);
  PendingResult end(process);
  EXPECT_TRUE(node_says("attempt 2 trains from step "));
  process.send(SIGTERM);
  const ProgramResult result = end.get();
  EXPECT_EQ(result.code, 75) << result.err;
  const Json attempts = status()["attempts"];
  ASSERT_EQ(attempts.size(), 2u);
  EXPECT_EQ(attempts[1]["from"], "memory") << result.err;
  EXPECT_GE(attempts[1]["from_step"], 6);
}

// A checkpoint has no room for a while, but metrics do. Training has gone on without it, so later snapshots count.
TEST_F(Supervise, ASaveThatFailsLeavesTheSnapshotsAfterIt) {
  if (faults_library().empty())
    GTEST_SKIP() << "no fault injection under a sanitizer, which must be loaded before every other library";
  const std::string full = (run_ / "full").string();
  Process process(command("--checkpoint.interval=20 --checkpoint.memory_every=2 --checkpoint.max_failed_saves=1000 "
                          "--training.steps=100000 --training.global_batch_size=16 --lr_scheduler.decay=constant"),
                  run_.path(), "exec " + with_faults(concat("write *rank-00000.safetensors* 1+ ENOSPC while ", full)));
  ASSERT_TRUE(process.read_to_step(30));
  write_text(full, "");
  ASSERT_TRUE(process.read_to_step(75));
  kill_rank(1);
  PendingResult end(process);
  EXPECT_TRUE(node_says("attempt 2 trains from step "));
  std::filesystem::remove(full);
  process.send(SIGTERM);
  const ProgramResult result = end.get();
  EXPECT_EQ(result.code, 75) << result.err;
  EXPECT_TRUE(says(result.err, "(failed save 1 of 1000)")) << result.err;
  const Json attempts = status()["attempts"];
  ASSERT_EQ(attempts.size(), 2u);
  EXPECT_EQ(attempts[1]["from"], "memory") << result.err;
  EXPECT_GT(attempts[1]["from_step"], 40) << "the save of step 40 has failed";
}

// A rank is killed while nothing more fits onto the disk. The next attempt has the state in memory. It waits for a little room, and
// then trains on, although a checkpoint does not fit yet.
TEST_F(Supervise, AFullDiskDoesNotEndARunThatIsInMemory) {
  write_text(run_ / "on_a_small_disk.sh", "mkdir small && mount -t tmpfs -o size=3m tmpfs small || exit 99\nexec \"$@\"\n");
  Process process(command("--checkpoint.interval=0 --checkpoint.memory_every=2 --training.steps=100000 --run.output_dir=small/out "
                          "--training.global_batch_size=16 --lr_scheduler.decay=constant --checkpoint.retry_s=20"),
                  run_.path(), "exec unshare -m sh on_a_small_disk.sh");
  if (!process.read_to_step(12)) {
    ASSERT_EQ(process.wait().code, 99);
    GTEST_SKIP() << "no permission to mount a small disk";
  }
  const std::filesystem::path ballast = concat("/proc/", process.pid(), "/root", (run_ / "small/ballast").string());
  for (std::ofstream file(ballast); file << std::string(4096, 'x') << std::flush;) {
  }
  kill_rank(1);
  std::this_thread::sleep_for(std::chrono::seconds(2));
  std::filesystem::resize_file(ballast, std::filesystem::file_size(ballast) - (300 << 10));
  ASSERT_TRUE(process.read_to_step(60));  // of attempt 2
  const std::filesystem::path first = ballast.parent_path() / "out/attempts/00000001.json";
  for (int tries = 0; tries < 500 && json_of(read_file(first))["code"].is_null(); ++tries)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(json_of(read_file(first))["code"], 128 + SIGKILL) << "written as soon as there is room, not after the next save";
  std::filesystem::remove(ballast);
  process.send(SIGTERM);
  const ProgramResult result = process.wait();
  EXPECT_EQ(result.code, 75) << result.err;
  EXPECT_TRUE(says(result.err, "cannot write: No space left on device; waiting up to 20 s for room")) << result.err;
  EXPECT_TRUE(says(result.err, "are free. Make room; the run goes on meanwhile")) << result.err;
  EXPECT_TRUE(says(result.err, "octet launch: attempt 2 trains from step 1")) << result.err;
  EXPECT_TRUE(says(result.err, ", from memory: its first step came ")) << result.err;
}

// A disk that stays full ends the run. The record of the last attempt gets onto it all the same.
TEST_F(Supervise, ADiskThatStaysFullIsTheRecordedEnd) {
  write_text(run_ / "on_a_small_disk.sh", "mkdir small && mount -t tmpfs -o size=3m tmpfs small || exit 99\nexec \"$@\"\n");
  Process process(concat("launch -n 1 --supervise --restarts=1 -- train run.toml --metrics.tensorboard=false --run.output_dir=small/out ",
                         "--checkpoint.interval=0 --checkpoint.memory_every=0 --checkpoint.retry_s=1 --training.steps=100000 "
                         "--lr_scheduler.decay=constant"),
                  run_.path(), "exec unshare -m sh on_a_small_disk.sh");
  if (!process.read_to_step(3)) {
    ASSERT_EQ(process.wait().code, 99);
    GTEST_SKIP() << "no permission to mount a small disk";
  }
  const std::filesystem::path small = concat("/proc/", process.pid(), "/root", (run_ / "small").string());
  const int alive = ::open(small.c_str(), O_PATH | O_DIRECTORY);  // the disk goes with the last process that knows it
  for (std::ofstream file(small / "ballast"); file << std::string(4096, 'x') << std::flush;) {
  }
  const pid_t rank = run_.pid_of_rank(0);
  ASSERT_GT(rank, 1);
  signal_process(rank, SIGKILL);
  const ProgramResult result = process.wait();
  EXPECT_EQ(result.code, 1) << result.err;
  const std::string disk = concat("/proc/", ::getpid(), "/fd/", alive, "/out");
  EXPECT_EQ(run_.run("status --code " + disk).code, 1) << run_.run("status " + disk).out;
  const Json attempts = json_of(run_.run("status --json " + disk).out)["attempts"];
  ASSERT_EQ(attempts.size(), 2u) << result.err;
  const std::string what = attempts[1]["what"];
  EXPECT_TRUE(says(what, "rank 0 ended with code 1: small/out"));
  EXPECT_TRUE(says(what, "No space left on device"));
  EXPECT_TRUE(says(what, "make room, and give the same command again"));
  EXPECT_FALSE(std::filesystem::exists(disk + "/attempts/.room"));
  ::close(alive);
}

// Reading was tried again for checkpoint.retry_s when a rank ends with 76.
TEST_F(Supervise, StorageThatCannotBeReadGetsTimeToComeBack) {
  if (faults_library().empty())
    GTEST_SKIP() << "no fault injection under a sanitizer, which must be loaded before every other library";
  ASSERT_EQ(run_.train("--training.steps=4 --metrics.tensorboard=false").code, 0);
  const std::string options = "--training.steps=8 --checkpoint.retry_s=0.2";
  Process process(command(options), run_.path(), "exec " + with_faults("read *step-00000004/rank-00000.safetensors 3+ EIO"));
  PendingResult end(process);
  EXPECT_TRUE(node_says("; restarts in 60 s"));
  process.send(SIGTERM);
  const ProgramResult result = end.get();
  EXPECT_EQ(result.code, 75) << result.err;
  EXPECT_TRUE(says(result.err, "rank-00000.safetensors: cannot read: Input/output error, also after 0.2 s of trying again"));
  EXPECT_EQ(status()["attempts"][0]["code"], 76);
  EXPECT_EQ(status()["code"], 75) << "a job script starts it again";

  const ProgramResult forbidden =
      run_.run(command(options), "exec " + with_faults("open *step-00000004/manifest.json 1+ EACCES"));
  EXPECT_EQ(forbidden.code, 76) << forbidden.err;
  EXPECT_EQ(status()["attempts"].back()["next"], "stops") << "permissions do not come back by themselves";
  const ProgramResult later = run_.run(command(options));
  EXPECT_EQ(later.code, 0) << later.err;

  const ProgramResult config = run_.run("train run.toml", "exec " + with_faults("read *run.toml 1+ EIO"));
  EXPECT_EQ(config.code, 76) << "the storage, and no mistake in the file: " << config.err;
}

// The file system of the run is unmounted, and a rank is killed. A restart must not train in the folder beneath the mount point.
TEST_F(Supervise, AFolderThatIsNotMountedIsNotBegunAnew) {
  const std::string options = command("--checkpoint.interval=4 --training.steps=5000", 1, "--restarts=1");
  Process process(options, run_.path());
  ASSERT_TRUE(process.read_to_step(6));
  for (int tries = 0; tries < 10'000 && !std::filesystem::exists(run_ / "out/checkpoints/step-00000004"); ++tries)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  signal_process(run_.pid_of_rank(0), SIGSTOP);  // so that it saves nothing where the folder was
  std::filesystem::rename(run_ / "out", run_ / "disk");
  kill_rank(0);
  const ProgramResult result = process.wait();
  EXPECT_EQ(result.code, 76) << result.err;
  EXPECT_TRUE(says(result.err, "out/run.json: is gone, although this run has trained. Is a file system not mounted?"))
      << result.err;
  EXPECT_FALSE(std::filesystem::exists(run_ / "out/metrics.jsonl"));
  EXPECT_FALSE(std::filesystem::exists(run_ / "out/run.json"));
  std::filesystem::remove_all(run_ / "out");
  std::filesystem::rename(run_ / "disk", run_ / "out");
  const std::int64_t saved = checkpoint::find_checkpoints(run_ / "out/checkpoints").front().step;
  const ProgramResult later = run_.run(concat(options, " --until=", saved + 1));
  EXPECT_EQ(later.code, 0) << later.err;
  EXPECT_TRUE(says(later.err, concat("resuming after step ", saved))) << later.err;
}

// The index of a corpus is mapped. A page that cannot be read gives no error number, only a signal.
TEST_F(Supervise, ACorpusThatCannotBeReadGetsTimeToo) {
  Process process(command("--training.steps=100000 --checkpoint.interval=0 --lr_scheduler.decay=constant"), run_.path());
  ASSERT_TRUE(process.read_to_step(3));
  std::filesystem::resize_file(run_ / "corpus.idx", 0);
  PendingResult end(process);
  EXPECT_TRUE(node_says("; restarts in 60 s"));
  process.send(SIGTERM);
  const ProgramResult result = end.get();
  EXPECT_EQ(result.code, 75) << result.err;
  EXPECT_TRUE(says(result.err, "corpus.idx: cannot be read: ")) << result.err;
}

// An attempt that gets no file when it begins, because the disk has no inodes, is written down later, under its own number.
TEST_F(Supervise, AnAttemptIsWrittenDownLater) {
  if (faults_library().empty())
    GTEST_SKIP() << "no fault injection under a sanitizer, which must be loaded before every other library";
  const std::string full = (run_ / "full").string();
  const std::string rules =
      concat("open */out/attempts/*.tmp-* 1+ ENOSPC while ", full, ";open */out/attempts/00000002.json 1+ ENOSPC while ", full);
  Process process(
      command("--checkpoint.interval=0 --checkpoint.memory_every=2 --training.steps=100000 --lr_scheduler.decay=constant "
              "--training.global_batch_size=16",
              1),
      run_.path(), "exec " + with_faults(rules));
  ASSERT_TRUE(process.read_to_step(40));  // a snapshot is complete
  write_text(full, "");
  kill_rank(0);
  PendingResult end(process);
  EXPECT_TRUE(node_says("attempt 2 trains from step "));
  std::filesystem::remove(full);
  kill_rank(0);
  EXPECT_TRUE(node_says("attempt 3 trains from step "));
  process.send(SIGTERM);
  const ProgramResult result = end.get();
  EXPECT_EQ(result.code, 75) << result.err;
  const Json attempts = status()["attempts"];
  ASSERT_EQ(attempts.size(), 3u) << result.err;
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(attempts[i]["attempt"], i + 1);
  EXPECT_EQ(attempts[1]["code"], 128 + SIGKILL);
  EXPECT_EQ(attempts[1]["from"], "memory");
  const std::string complaint = "No space left on device; the run goes on";
  EXPECT_TRUE(says(result.err, complaint)) << result.err;
  EXPECT_EQ(result.err.find(complaint), result.err.rfind(complaint)) << "once, not at each try\n" << result.err;
}

// On a file system without hard links the file of an attempt gets its text at once, so that others see who has the number. Here
// it keeps that text, because later ones cannot be written.
TEST_F(Supervise, ANumberIsNotTakenWithoutAName) {
  if (faults_library().empty())
    GTEST_SKIP() << "no fault injection under a sanitizer, which must be loaded before every other library";
  const ProgramResult result =
      run_.run(command("--training.steps=2", 1),
               "exec " + with_faults("link */out/attempts/* 1+ ENOTSUP; rename */out/attempts/*.json 1+ EACCES"));
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(json_of(read_file(run_ / "out/attempts/00000001.json"))["ended"], "");
}

}  // namespace
}  // namespace octet::testing
