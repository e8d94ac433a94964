// `octet launch --supervise` and `octet status`: runs that faults do not end, and what people and scripts read about them.
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <optional>
#include <string>
#include <thread>

#include "end_to_end/supervise_fixture.h"
#include "octet/base/rng.h"
#include "octet/checkpoint/steps.h"
#include "support/faults.h"

namespace octet::testing {
namespace {

// A rank is killed again and again, at random moments; the supervisor does the rest.
TEST_F(Supervise, KillsChangeNothing) {
  constexpr int kKills = 6;
  const std::string options =
      "--checkpoint.interval=4 --training.steps=70 --training.global_batch_size=16 --parallel.gradients=sharded ";
  ASSERT_EQ(run_.run("launch -n 2 -- train run.toml --metrics.tensorboard=false --run.output_dir=reference " + options).code, 0);
  Process process(command(options), run_.path());
  const Rng rng(23, RngStream::test);
  std::int64_t step = 0;
  for (int i = 0; i < kKills; ++i) {
    const auto words = rng.words(static_cast<std::uint64_t>(i));
    step += 5 + words[0] % 4;  // beyond a new checkpoint
    ASSERT_TRUE(process.read_to_step(step));
    std::this_thread::sleep_for(std::chrono::microseconds(words[1] % 12'000));
    kill_rank(static_cast<int>(words[2] % 2));
  }
  const ProgramResult result = process.wait();
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_TRUE(same_outcome(outcome_of(run_ / "out"), outcome_of(run_ / "reference")));
  const Json now = status();
  EXPECT_EQ(now["state"], "done");
  EXPECT_EQ(now["code"], 0);
  EXPECT_EQ(now["step"], 70);
  EXPECT_GT(now["productive"], 0.0);
  EXPECT_LT(now["productive"], 1.0);
  ASSERT_EQ(run_.run("report out").code, 0);
  EXPECT_TRUE(says(read_file(run_ / "out/report.html"), "<h2>Attempts</h2>"));
  ASSERT_EQ(now["attempts"].size(), std::size_t{kKills} + 1);
  for (int i = 0; i < kKills; ++i) {
    const Json& attempt = now["attempts"][static_cast<std::size_t>(i)];
    EXPECT_EQ(attempt["attempt"], i + 1);
    EXPECT_EQ(attempt["code"], 128 + SIGKILL);
    EXPECT_TRUE(says(attempt["what"], "was killed by signal 9 (SIGKILL)")) << attempt["what"];
    EXPECT_TRUE(says(attempt["next"], "restarts"));
    const Json& seconds = attempt["seconds"];
    EXPECT_LE(seconds["joining"], seconds["loading"]);
    EXPECT_LE(seconds["loading"], seconds["first_step"]);
    if (seconds.contains("last_step")) {  // a kill during a save leaves it out
      EXPECT_LE(seconds["first_step"], seconds["last_step"]);
      EXPECT_LE(seconds["last_step"].get<double>() + seconds["stop"].get<double>(), seconds["total"].get<double>() + 0.01);
    }
    EXPECT_TRUE(says(result.err, concat("attempt ", i + 2, " trains from step "))) << result.err;
  }
  const std::string log = read_file(run_ / "out/logs/rank-00000.log");
  EXPECT_TRUE(says(log, concat("==== attempt ", kKills + 1, " ====\n")));
  EXPECT_TRUE(says(log, "Z step 70/70 "));
}

// Flips a bit in each snapshot that a supervisor keeps in memory.
void damage_snapshots(pid_t supervisor) {
  for (const auto& entry : std::filesystem::directory_iterator(concat("/proc/", supervisor, "/fd"))) {
    std::error_code gone;
    if (!std::filesystem::read_symlink(entry, gone).string().starts_with("/memfd:octet snapshot")) continue;
    const auto bytes = static_cast<std::streamoff>(std::filesystem::file_size(entry));
    if (bytes < 1 << 17) continue;  // a list of tensors
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    const int byte = file.seekg(bytes / 2).get();
    file.seekp(bytes / 2).put(static_cast<char>(byte ^ 4));
  }
}

// Nothing is on the disk when a rank is killed. The first attempt began with other words than the next ones need.
TEST_F(Supervise, GoesOnFromMemory) {
  const std::string options =
      "--resume none --checkpoint.interval=0 --checkpoint.memory_every=2 --training.steps=40 --training.global_batch_size=16 ";
  ASSERT_EQ(run_.run("launch -n 2 -- train run.toml --metrics.tensorboard=false --run.output_dir=reference " + options).code, 0);
  Process process(command(options), run_.path());
  for (const int rank : {1, 0}) {
    ASSERT_TRUE(process.read_to_step(rank == 1 ? 10 : 20));
    kill_rank(rank);
  }
  const ProgramResult result = process.wait();
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_TRUE(same_outcome(outcome_of(run_ / "out"), outcome_of(run_ / "reference")));
  const Json attempts = status()["attempts"];
  ASSERT_EQ(attempts.size(), 3u);
  // How old a snapshot is depends on how busy the machine is.
  for (const int attempt : {1, 2}) {
    EXPECT_EQ(attempts[attempt]["from"], "memory");
    EXPECT_GT(attempts[attempt]["from_step"], attempts[attempt - 1]["from_step"]);
  }
  EXPECT_TRUE(says(read_file(run_ / "out/logs/rank-00000.log"),
                   concat("resuming after step ", attempts[2]["from_step"], " from memory")));
}

// The steps of a job are done again, so nothing is set aside.
TEST_F(Supervise, BeginsAnewBeforeTheFirstCheckpoint) {
  Process process(command("--checkpoint.interval=0 --checkpoint.memory_every=0 --training.steps=12 "), run_.path());
  ASSERT_TRUE(process.read_to_step(4));
  kill_rank(1);
  const ProgramResult result = process.wait();
  ASSERT_EQ(result.code, 0) << result.err;
  ASSERT_EQ(status()["attempts"].size(), 2u);
  EXPECT_EQ(metrics_of(run_ / "out").size(), 12u);
  EXPECT_FALSE(std::filesystem::exists(run_ / "out/history"));
}

// Somebody edits the file of a run, maybe for the next one. Restarts go on with the old text, and the next start reads the new
// one. With another mesh it goes on from the checkpoint.
TEST_F(Supervise, AnEditedFileCountsFromTheNextStartOn) {
  const std::string options =
      command("--checkpoint.interval=8 --checkpoint.memory_every=1 --training.steps=5000 --training.global_batch_size=16");
  Process process(options, run_.path());
  ASSERT_TRUE(process.read_to_step(13));
  write_text(run_ / "run.toml", read_file(run_ / "run.toml") + "\n[parallel]\nreplicate = 2\n");
  kill_rank(1);
  PendingResult end(process);
  EXPECT_TRUE(node_says("attempt 2 trains from step "));
  kill_rank(0);
  EXPECT_TRUE(node_says("attempt 3 trains from step "));
  process.send(SIGTERM);
  const ProgramResult result = end.get();
  ASSERT_EQ(result.code, 75) << result.err;
  const std::string changed = "run.toml differs from the configuration with which this run was started";
  ASSERT_TRUE(says(result.err, changed));
  EXPECT_EQ(result.err.find(changed), result.err.rfind(changed)) << "each edit is told once: " << result.err;
  EXPECT_FALSE(says(read_file(run_ / "out/logs/rank-00000.log"), "changed since then"));
  EXPECT_EQ(status()["attempts"][1]["from"], "memory");

  const std::int64_t saved = checkpoint::find_checkpoints(run_ / "out/checkpoints").front().step;
  const ProgramResult next = run_.run(concat(options, " --until=", saved + 1));
  ASSERT_EQ(next.code, 0) << next.err;
  EXPECT_TRUE(says(next.err, "changed since then: parallel.replicate: 1 -> 2")) << next.err;
}

// A rank is killed while its checkpoint of step 10 has no name yet. The run must not go on from a later snapshot, or that
// checkpoint would be missing for ever. From the snapshot of step 10 it may.
TEST_F(Supervise, ASnapshotReplacesNoCheckpoint) {
  for (const int every : {1, 10}) {
    std::filesystem::remove_all(run_ / "out");
    write_text(run_ / "slow", "");
    Process process(command(concat("--checkpoint.interval=5 --checkpoint.keep_latest_k=0 --checkpoint.memory_every=", every,
                                   " --training.steps=20 --training.global_batch_size=16 ")),
                    run_.path(), with_faults(concat("rename */step-00000010 1+ hang while ", (run_ / "slow").string())));
    ASSERT_TRUE(process.read_to_step(14));
    std::filesystem::remove(run_ / "slow");
    kill_rank(1);
    const ProgramResult result = process.wait();
    ASSERT_EQ(result.code, 0) << result.err;
    const Json attempts = status()["attempts"];
    ASSERT_EQ(attempts.size(), 2u);
    EXPECT_LE(attempts[1]["from_step"], 10);
    if (every == 10) {
      EXPECT_EQ(attempts[1]["from_step"], 10);
    }
    for (const char* step : {"05", "10", "15", "20"})
      EXPECT_TRUE(std::filesystem::exists(run_ / concat("out/checkpoints/step-000000", step))) << step;
  }
}

TEST_F(Supervise, DamagedSnapshotsAreNotLoaded) {
  const std::string options =
      "--checkpoint.interval=4 --checkpoint.memory_every=1 --training.steps=24 --training.global_batch_size=16 ";
  ASSERT_EQ(run_.run("launch -n 2 -- train run.toml --metrics.tensorboard=false --run.output_dir=reference " + options).code, 0);
  Process process(command(options), run_.path());
  ASSERT_TRUE(process.read_to_step(10));
  const pid_t first = run_.pid_of_rank(0);
  signal_process(first, SIGSTOP);  // so that no newer snapshot comes
  damage_snapshots(parent_of(first));
  signal_process(first, SIGKILL);
  const ProgramResult result = process.wait();
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_TRUE(says(result.err, "in memory cannot be used: rank 0: /proc/self/fd/")) << result.err;
  EXPECT_TRUE(says(read_file(run_ / "out/logs/rank-00000.log"), "from out/checkpoints/step-"));
  EXPECT_TRUE(same_outcome(outcome_of(run_ / "out"), outcome_of(run_ / "reference")));
}

TEST_F(Supervise, StopsWhereStartingAgainCannotHelp) {
  EXPECT_EQ(run_.run(command("--training.micro_batch_size=3")).code, 2);
  EXPECT_FALSE(std::filesystem::exists(run_ / "out")) << "refused before the first attempt";
  const ProgramResult wrong = run_.run(command("--precision.recipe=fp8_current --precision.skip='[\"nothing\"]'"));
  EXPECT_EQ(wrong.code, 2) << wrong.err;
  EXPECT_EQ(status()["attempts"].size(), 1u);
  EXPECT_EQ(status()["attempts"][0]["next"], "stops");
  EXPECT_EQ(run_.run("status out --code").code, 2);
  EXPECT_TRUE(says(run_.run("status out").out, "out: ended with code 2\n"));
  EXPECT_TRUE(says(wrong.err, "attempt 1 ended with code 2 at step 0; stops")) << "it has looked for no checkpoint";
}

// The second attempt ends before it has found the checkpoint of the first.
TEST_F(Supervise, RemembersTheCheckpointOfTheAttemptBefore) {
  Process process(command("--training.steps=5000 --checkpoint.interval=4 --checkpoint.async=false", 1), run_.path());
  ASSERT_TRUE(process.read_to_step(6));
  std::filesystem::remove(run_ / "corpus.idx");
  kill_rank(0);
  const ProgramResult result = process.wait();
  EXPECT_EQ(result.code, 76) << result.err;
  const Json attempts = status()["attempts"];
  ASSERT_EQ(attempts.size(), 2u);
  EXPECT_GE(attempts[0]["checkpoint_step"], 4);
  EXPECT_EQ(attempts[1]["checkpoint_step"], attempts[0]["checkpoint_step"]);
  EXPECT_TRUE(says(result.err, concat("attempt 2 ended with code 76 at step 0; the newest checkpoint is of step ",
                                      attempts[0]["checkpoint_step"], "; stops")))
      << result.err;
}

TEST_F(Supervise, EndsWhenItIsAskedTo) {
  Process process(command("--training.steps=5000 --checkpoint.interval=0"), run_.path());
  ASSERT_TRUE(process.read_to_step(3));
  const Json during = status();
  EXPECT_EQ(during["state"], "running");
  ASSERT_EQ(during["ranks"].size(), 2u);
  EXPECT_GE(during["ranks"][1]["step"], 2);
  EXPECT_EQ(run_.run("status out --code").code, 0);
  process.send(SIGTERM);
  const ProgramResult result = process.wait();
  EXPECT_EQ(result.code, 75) << result.err;
  EXPECT_EQ(status()["attempts"].size(), 1u);
  EXPECT_EQ(status()["state"], "ended");
  EXPECT_EQ(run_.run("status out --code").code, 75);
}

TEST_F(Supervise, ASecondOneIsRefusedAndLeavesTheFirstItsRoom) {
  Process process(command("--training.steps=5000 --checkpoint.interval=0"), run_.path());
  ASSERT_TRUE(process.read_to_step(3));
  const ProgramResult second = run_.run(command("--training.steps=5000"));
  EXPECT_EQ(second.code, 2) << second.err;
  EXPECT_TRUE(std::filesystem::exists(run_ / "out/attempts/.room"));
  process.send(SIGTERM);
  EXPECT_EQ(process.wait().code, 75);
  EXPECT_FALSE(std::filesystem::exists(run_ / "out/attempts/.room"));
}

// A rank is killed at the same moment. Whoever asked wants to go on later.
TEST_F(Supervise, EndsWhenItIsAskedToAndARankDies) {
  Process process(command("--training.steps=5000 --checkpoint.interval=0"), run_.path());
  ASSERT_TRUE(process.read_to_step(3));
  kill_rank(1);
  process.send(SIGTERM);
  const ProgramResult result = process.wait();
  EXPECT_EQ(result.code, 75) << result.err;
  EXPECT_EQ(status()["attempts"][0]["code"], 128 + SIGKILL);
  EXPECT_EQ(run_.run("status out --code").code, 75);
}

// Without a checkpoint there is no progress: the first restart comes at once, the second would be one too many.
TEST_F(Supervise, GivesUpWithoutProgress) {
  Process process(command("--training.steps=5000 --checkpoint.interval=0 --checkpoint.memory_every=0", 1, "--restarts=1"),
                  run_.path());
  for (int i = 0; i < 2; ++i) kill_rank(0);
  const ProgramResult result = process.wait();
  EXPECT_EQ(result.code, 128 + SIGKILL) << result.err;
  EXPECT_TRUE(says(result.err, "stops: 1 restarts in a row brought no newer checkpoint, and --restarts = 1")) << result.err;
  EXPECT_TRUE(says(result.err, "octet launch: attempt 1: ")) << "all attempts are told in the end";
  EXPECT_TRUE(says(result.err, "octet launch: attempt 2: "));
}

// A killed rank leaves its lock. Seen from another machine, that must not look like a run that goes on.
TEST_F(Supervise, TheLockOfAKilledRankDoesNotHideTheEnd) {
  Process process(command("--training.steps=5000 --checkpoint.interval=0", 1, "--restarts=0"), run_.path());
  ASSERT_TRUE(process.read_to_step(3));
  kill_rank(0);
  EXPECT_EQ(process.wait().code, 128 + SIGKILL);
  for (const char* file : {"out/run.lock", "out/attempts/00000001.json"}) {
    Json json = json_of(read_file(run_ / file));
    Json& writer = json.contains("boot") ? json : json["supervisor"];
    writer["boot"] = writer["machine"] = "another";
    write_text(run_ / file, json.dump());
  }
  EXPECT_EQ(run_.run("status out --code").code, 128 + SIGKILL);
  EXPECT_EQ(status()["state"], "ended");
  // A later run of another kind holds the folder.
  Json lock = json_of(read_file(run_ / "out/run.lock"));
  lock["job"] = "";
  write_text(run_ / "out/run.lock", lock.dump());
  EXPECT_EQ(status()["state"], "held by another machine");
  EXPECT_EQ(run_.run("status out --code").code, 0);
}

// While it waits to start again, a request ends it; before that, nobody calls the run ended.
TEST_F(Supervise, CanBeAskedWhileItWaits) {
  Process process(command("--training.steps=5000 --checkpoint.interval=0 --checkpoint.memory_every=0", 1), run_.path());
  for (int i = 0; i < 2; ++i) kill_rank(0);
  Json now;
  for (int tries = 0; tries < 500 && now["state"] != "about to start again"; ++tries) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    now = status();
  }
  EXPECT_EQ(now["state"], "about to start again");
  process.send(SIGTERM);
  const ProgramResult result = process.wait();
  EXPECT_EQ(result.code, 75) << result.err;
  EXPECT_EQ(run_.run("status out --code").code, 75);
}

// A supervisor that is killed takes its ranks with it and cannot say so. The next one goes on, with the next number.
TEST_F(Supervise, IsSucceededAfterItsOwnDeath) {
  const std::string options = "--checkpoint.interval=2 --training.steps=12 ";
  ASSERT_EQ(run_.run("launch -n 2 -- train run.toml --metrics.tensorboard=false --run.output_dir=reference " + options).code, 0);
  Process process(command(options), run_.path());
  ASSERT_TRUE(process.read_to_step(5));
  process.send(SIGKILL);
  process.wait();
  EXPECT_EQ(status()["state"], "vanished");
  EXPECT_EQ(run_.run("status out --code").code, 128 + SIGKILL);
  const ProgramResult second = run_.run(command(options));
  ASSERT_EQ(second.code, 0) << second.err;
  const Json attempts = status()["attempts"];
  ASSERT_EQ(attempts.size(), 2u);
  EXPECT_EQ(attempts[1]["attempt"], 2);
  EXPECT_GE(attempts[1]["from_step"], 2);
  EXPECT_TRUE(same_outcome(outcome_of(run_ / "out"), outcome_of(run_ / "reference")));
}

// What the first attempt begins with counts until a checkpoint of its own is there. A kill may come some steps late, so the saves
// are far apart and the steps slow.
TEST_F(Supervise, GoesOnFromItsOwnCheckpoints) {
  ASSERT_EQ(run_.train("--training.steps=4").code, 0);
  Process process(command("--resume none --run.set_aside=true --checkpoint.interval=40 --checkpoint.async=false "
                          "--checkpoint.memory_every=0 --training.steps=80 --training.global_batch_size=32"),
                  run_.path());
  ASSERT_TRUE(process.read_to_step(2));
  kill_rank(1);  // nothing is saved yet, and the old run's checkpoint is not this one's
  for (std::optional<std::string> line; !line || line->rfind("step 1/", 0) != 0;) ASSERT_TRUE(line = process.read_line());
  ASSERT_TRUE(process.read_to_step(41));
  kill_rank(1);
  const ProgramResult result = process.wait();
  ASSERT_EQ(result.code, 0) << result.err;
  const Json attempts = status()["attempts"];
  ASSERT_EQ(attempts.size(), 3u);
  EXPECT_EQ(attempts[0]["from_step"], 0);
  EXPECT_EQ(attempts[1]["from_step"], 0) << result.err;
  EXPECT_EQ(attempts[2]["from_step"], 40) << result.err;
}

// A rank that stands still holds up the other one, and neither ends.
TEST_F(Supervise, ARankThatStandsStillIsNamed) {
  const std::string options = "--checkpoint.interval=4 --training.steps=40 --training.global_batch_size=16 ";
  ASSERT_EQ(run_.run("launch -n 2 -- train run.toml --metrics.tensorboard=false --run.output_dir=reference " + options).code, 0);
  Process process(command(options + "--comm.stall_s=2"), run_.path());
  ASSERT_TRUE(process.read_to_step(6));
  signal_process(run_.pid_of_rank(1), SIGSTOP);
  const ProgramResult result = process.wait();
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_TRUE(same_outcome(outcome_of(run_ / "out"), outcome_of(run_ / "reference")));
  const Json attempts = status()["attempts"];
  ASSERT_EQ(attempts.size(), 2u) << result.err;
  EXPECT_EQ(attempts[0]["code"], 80);
  EXPECT_TRUE(says(attempts[0]["what"], "; rank 1 is frozen and holds up the others; rank 1: ")) << attempts[0]["what"];
  EXPECT_TRUE(says(attempts[0]["what"], "; rank 0: waits in ")) << attempts[0]["what"];
  EXPECT_TRUE(says(attempts[0]["what"], " of `shard")) << attempts[0]["what"];
  const std::string waits = read_file(run_ / "out/logs/rank-00000.log"), stands = read_file(run_ / "out/logs/rank-00001.log");
  EXPECT_TRUE(says(waits, "stack of thread ")) << waits;
  EXPECT_TRUE(says(waits, "octet::comm::Group::")) << waits;
  EXPECT_TRUE(says(stands, "): T")) << stands;
  EXPECT_FALSE(says(result.err, "stack of thread ")) << "stacks belong into the logs";
}

// The kernel of this test does not run out of memory. A folder of files stands in for the control group, and counts a kill.
TEST_F(Supervise, MemoryThatIsUsedUpTwiceEndsTheRun) {
  make_group(768 << 20);
  Process process(command("--training.steps=100000 --checkpoint.interval=0 --checkpoint.memory_every=0"), run_.path(), kInGroup);
  if (!process.read_to_step(3)) {
    ASSERT_EQ(process.wait().code, 99);
    GTEST_SKIP() << "no permission to mount a folder, or no control group of memory";
  }
  for (int kills = 1; kills <= 2; ++kills) {
    count_memory_kills(kills);
    kill_rank(1);
    ASSERT_TRUE(kills == 2 || process.read_to_step(3));
  }
  const ProgramResult result = process.wait();
  EXPECT_EQ(result.code, 1) << result.err;
  EXPECT_TRUE(says(result.err,
                   "rank 1 was killed by signal 9 (SIGKILL) by the kernel, because memory was used up: this host's ranks "
                   "may use 768 MiB"))
      << result.err;
  EXPECT_TRUE(says(result.err, "attempt 2 ended with code 1 ")) << result.err;
  EXPECT_TRUE(says(result.err, "; stops: memory was used up again after a restart")) << result.err;
  const Json attempts = status()["attempts"];
  EXPECT_EQ(attempts[0]["code"], 128 + SIGKILL);
  EXPECT_EQ(attempts[1]["code"], 1);
  EXPECT_EQ(run_.run("status out --code").code, 1);
}

// The model is wide and its micro-batch short, so that the snapshots are large beside what training takes.
TEST_F(Supervise, SnapshotsBeyondMemoryAreRefused) {
  const std::string options = "--model.intermediate_size=4096 --training.seq_len=16 --training.micro_batch_size=1 ";
  const ProgramResult plan = run_.run("launch -n 2 -- train run.toml --dry-run " + options);
  ASSERT_EQ(plan.code, 0) << plan.err;
  const std::string before = "under `octet launch --supervise` this host keeps ";
  const std::size_t begin = plan.out.find(before) + before.size(), end = plan.out.find(" in memory", begin);
  ASSERT_NE(end, std::string::npos) << plan.out;
  const std::string what = plan.out.substr(begin, end - begin);
  EXPECT_TRUE(what.starts_with("4 snapshots of ")) << what;
  EXPECT_FALSE(says(run_.train("--dry-run --checkpoint.memory_every=0").out, "snapshots of"));
  make_group(40 << 20);
  const ProgramResult refused = run_.run(command(options + "--checkpoint.memory_every=1"), kInGroup);
  if (refused.code == 99) GTEST_SKIP() << "no permission to mount a folder, or no control group of memory";
  EXPECT_EQ(refused.code, 3) << refused.err;
  const std::string words = what + " are more than 40% of this host's 40.0 MiB of memory; --checkpoint.memory_every=0 takes none";
  EXPECT_TRUE(says(refused.err, words)) << refused.err;
  const ProgramResult without = run_.run(command(options + "--training.steps=3"), kInGroup);
  EXPECT_EQ(without.code, 0) << without.err;
  EXPECT_TRUE(says(without.err, "warning: no snapshots are taken: rank 0: " + words)) << without.err;
}

// A killed process says nothing about a processor, so the second attempt starts without a gate.
TEST_F(Supervise, RunsAGateBeforeTheFirstAttempt) {
  Process process(command("--training.steps=30 --checkpoint.interval=5", 1, "--gate on"), run_.path());
  ASSERT_TRUE(process.read_to_step(7));
  kill_rank(0);
  const ProgramResult result = process.wait();
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(status()["attempts"].size(), 2u);
  const std::string log = read_file(run_ / "out/logs/node-000.log");
  const std::string words = "this host has passed its ";
  EXPECT_TRUE(says(log, words + "full gate in ")) << log;
  EXPECT_EQ(log.find(words), log.rfind(words)) << log;
}

class SuperviseFaults : public Supervise {
 protected:
  void SetUp() override {
    if (faults_library().empty()) GTEST_SKIP() << "no fault injection here";
  }
};

TEST_F(SuperviseFaults, EndsOnAHostThatIsUnfit) {
  const std::string full = "exec " + with_faults("write */gate-* 1+ ENOSPC");
  const ProgramResult result = run_.run(command("--training.steps=4", 1, "--gate on"), full);
  EXPECT_EQ(result.code, 79) << result.err;
  EXPECT_TRUE(says(result.err, " takes no part in this run any more: gate: out/gate-")) << result.err;
  EXPECT_TRUE(says(result.err, "cannot write: No space left on device. ")) << result.err;
  EXPECT_TRUE(says(result.err, "attempt 1 ended with code 79 at step 0; stops: this host is unfit")) << result.err;
  EXPECT_EQ(run_.run("status out --code").code, 79);
  EXPECT_EQ(run_.run(command("--training.steps=4", 1), full).code, 0) << "no gate on CPUs";
}

// The ranks of a restart get the token from the supervisor's memory.
TEST_F(SuperviseFaults, ARestartReadsNoTokenFromTheDisk) {
  write_text(run_ / "token", std::string(64, 'a'));
  const std::string away = (run_ / "away").string();
  const std::string how = "exec env OCTET_TOKEN_FILE=token " + with_faults(concat("open */token 1+ EIO while ", away));
  Process process(command("--training.steps=5000 --checkpoint.interval=0 --checkpoint.memory_every=2"), run_.path(), how);
  ASSERT_TRUE(process.read_to_step(6));
  write_text(away, "");
  kill_rank(1);
  PendingResult end(process);
  EXPECT_TRUE(node_says("attempt 2 trains from step "));
  process.send(SIGTERM);
  const ProgramResult result = end.get();
  EXPECT_EQ(result.code, 75) << result.err;
  const ProgramResult cannot = run_.run(command(""), how);
  EXPECT_EQ(cannot.code, 76) << cannot.err;
  EXPECT_TRUE(says(cannot.err, "octet: OCTET_TOKEN_FILE=token: cannot open: Input/output error")) << cannot.err;
}

// The gate hangs, and the supervisor still hears that it shall end.
TEST_F(SuperviseFaults, ObeysWhileAGateRuns) {
  Process process(command("--training.steps=4", 1, "--gate on"), run_.path(), "exec " + with_faults("open */gate-* 1+ hang"));
  for (int tries = 0; tries < 3000 && !std::filesystem::exists(run_ / "faults.log"); ++tries)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  signal_process(process.pid(), SIGTERM);
  const ProgramResult result = process.wait();
  EXPECT_EQ(result.code, 75) << result.err;
}

// The checkpoint that --resume or the TOML names is still where the second attempt begins, if the first has saved nothing.
TEST_F(Supervise, BeginsAgainWhereItWasToldTo) {
  ASSERT_EQ(run_.train("--training.steps=6 --checkpoint.interval=3 --checkpoint.keep_latest_k=0 --run.output_dir=first").code, 0);
  const std::string begin = "first/checkpoints/step-00000003";
  for (const std::string where : {"command", "TOML"}) {
    const bool in_command = where == "command";
    if (!in_command) {
      std::string toml = read_file(run_ / "run.toml");
      const std::string table = "[checkpoint]\n";
      write_text(run_ / "run.toml", toml.replace(toml.find(table), table.size(), concat(table, "resume = \"", begin, "\"\n")));
    }
    std::filesystem::remove_all(run_ / "out");
    Process process(command(concat(in_command ? "--resume " + begin : "",
                                   " --checkpoint.interval=0 --checkpoint.memory_every=0 --training.steps=100"),
                            1),
                    run_.path());
    ASSERT_TRUE(process.read_to_step(5));
    kill_rank(0);
    const ProgramResult result = process.wait();
    ASSERT_EQ(result.code, 0) << where << "\n" << result.err;
    const Json attempts = status()["attempts"];
    ASSERT_EQ(attempts.size(), 2u);
    EXPECT_EQ(attempts[0]["from_step"], 3);
    EXPECT_EQ(attempts[1]["from_step"], 3);
  }
}

// The rank is killed when a rollback has begun and nothing has moved yet.
TEST_F(SuperviseFaults, UsesNoSnapshotOfStepsThatARollbackLeaves) {
  const std::string options = "--checkpoint.interval=0 --training.steps=50 ";
  ASSERT_EQ(run_.train(options + "--metrics.tensorboard=false --anomaly.spike=off --until 36").code, 0);
  const std::string on = (run_ / "on").string();
  write_text(on, "");
  Process process(command(options + "--optimizer.lr=50 --anomaly.spike=1.0001 --checkpoint.memory_every=1 ", 1), run_.path(),
                  "exec " + with_faults("mkdir */out/history/*/checkpoints 1 kill while " + on));
  for (int tries = 0; tries < 10'000 && !std::filesystem::exists(run_ / "faults.log"); ++tries)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  std::filesystem::remove(on);
  process.wait();
  const std::string log = read_file(run_ / "out/logs/rank-00000.log"), line = "resuming after step 36 from out/checkpoints/";
  EXPECT_FALSE(says(log, "from memory")) << log;
  EXPECT_NE(log.find(line), log.rfind(line)) << log;
}

// The run goes back to the checkpoint from which it began, and then to an older one.
TEST_F(Supervise, ARollbackBelowTheFirstStepIsRecorded) {
  const std::string options = "--training.steps=50 --checkpoint.memory_every=0 ";
  ASSERT_EQ(run_.train(options + "--metrics.tensorboard=false --anomaly.spike=off --checkpoint.interval=12 --until 36").code, 0);
  const ProgramResult result = run_.run(
      command(options + "--checkpoint.interval=0 --optimizer.lr=50 --anomaly.spike=1.0001 --anomaly.max_rollbacks=2", 1));
  EXPECT_EQ(result.code, 77) << result.err;
  EXPECT_TRUE(says(result.err, "; back to step 24, ")) << result.err;
  const Json attempt = parse_ordered_json(read_file(run_ / "out/attempts/00000001.json"), "attempt");
  EXPECT_EQ(attempt["from_step"], 24) << attempt;
  EXPECT_GT(attempt["steps"].get<int>(), attempt["last_step"].get<int>() - 24) << attempt;
  EXPECT_GT(attempt["steps"].get<int>(), 0) << attempt;
}

// The first attempt would have been refused, because an older run is in the folder, but its rank died before it could say so.
TEST_F(SuperviseFaults, ARestartSetsNoOlderRunAside) {
  ASSERT_EQ(run_.train("--training.steps=4").code, 0);
  write_text(run_ / "kills", "");
  Process process(command("--resume none --training.steps=6 ", 1), run_.path(),
                  "exec " + with_faults(concat("open */out/run.lock 1 kill while ", (run_ / "kills").string())));
  for (int tries = 0; tries < 3000 && !std::filesystem::exists(run_ / "faults.log"); ++tries)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  std::filesystem::remove(run_ / "kills");
  const ProgramResult result = process.wait();
  EXPECT_EQ(result.code, 2) << result.err;
  EXPECT_TRUE(says(result.err, "was killed by signal 9")) << result.err;
  EXPECT_TRUE(says(result.err, "out: there is a run up to step 4")) << result.err;
  EXPECT_FALSE(std::filesystem::exists(run_ / "out/history"));
}

TEST_F(Supervise, RefusesWhatItCannotKeepGoing) {
  EXPECT_TRUE(refused(run_.run("launch -n 2 --supervise -- doctor"), 2,
                      "`octet launch --supervise` keeps `octet train` going, not `octet doctor`"));
  EXPECT_EQ(run_.run("launch -n 2 --restarts=1 -- train run.toml").code, 2);
  EXPECT_TRUE(refused(run_.run("launch -n 2 --supervise -- train run.toml --trainin.steps=3"), 2,
                      "--trainin.steps=3: trainin.steps: unknown key (did you mean training.steps?)"));
  EXPECT_TRUE(refused(run_.run("launch -n 2 --supervise -- train run.toml --parallel.replicate=65536 --parallel.tensor=65536"), 2,
                      "parallel.replicate = 65536: must divide the number of ranks, 2"));
  EXPECT_TRUE(refused(run_.run("status nowhere"), 76, "nowhere: no such folder; give the folder of a run"));
  EXPECT_TRUE(refused(run_.run("status run.toml"), 76, "run.toml: not a folder; give the folder of a run"));
  EXPECT_TRUE(refused(run_.run("status ."), 76, ".: no attempts/ and no run.json here; give the folder of a run"));
}

TEST_F(Supervise, StatusOfARunWithoutASupervisor) {
  ASSERT_EQ(run_.train("--training.steps=4").code, 0);
  EXPECT_EQ(status()["state"], "done");
  EXPECT_EQ(status()["code"], 0);
  EXPECT_EQ(run_.run("status out --code").code, 0);
  EXPECT_TRUE(says(run_.run("status out").out, "step        4 of 4, loss "));
  std::filesystem::remove_all(run_ / "out/model");
  Json info = json_of(read_file(run_ / "out/run.json"));
  info.erase("code");  // of an earlier version
  info.erase("ended");
  write_text(run_ / "out/run.json", info.dump());
  EXPECT_EQ(status()["state"], "ended");
  EXPECT_TRUE(status()["code"].is_null());
}

}  // namespace
}  // namespace octet::testing
