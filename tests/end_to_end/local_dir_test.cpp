// checkpoint.local_dir: a run whose hosts have all lost power goes on from the snapshots on their disks.
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <future>
#include <memory>
#include <string>

#include "support/faults.h"
#include "support/hosts.h"
#include "support/rank_memory.h"
#include "support/tiny_run.h"

namespace octet::testing {
namespace {

namespace fs = std::filesystem;

class LocalDir : public ::testing::Test {
 protected:
  static std::string command(const std::string& more = "", int ranks = 2) {
    return concat("launch -n ", ranks, " --supervise -- train run.toml --metrics.tensorboard=false ", kOptions,
                  "--checkpoint.local_dir=disk ", more);
  }
  void make_reference() const {
    ASSERT_EQ(
        run_.run(concat("launch -n 2 -- train run.toml --metrics.tensorboard=false --run.output_dir=reference ", kOptions)).code,
        0);
  }
  // Kills the supervisor and all ranks at once, with the memory that they had.
  void lose_power_at_step(std::int64_t step, const std::string& environment = "exec") {
    Process process(command(), run_.path(), environment);
    ASSERT_TRUE(process.read_to_step(step));
    const pid_t first = run_.pid_of_rank(0), second = run_.pid_of_rank(1);
    ASSERT_GT(std::min(first, second), 1);
    signal_process(parent_of(first), SIGKILL);
    signal_process(first, SIGKILL);
    signal_process(second, SIGKILL);
    process.wait();
  }
  // Power may go while a rank writes a copy, which leaves it one; then all is done anew.
  void lose_power_with_two_copies() {
    for (int attempt = 0; attempt < 10; ++attempt) {
      fs::remove_all(run_ / "out");
      fs::remove_all(run_ / "disk");
      lose_power_at_step(12);
      if (copies_of(0).size() == 2 && copies_of(1).size() == 2) return;
    }
    FAIL() << "in ten attempts a rank had one copy";
  }
  // The files of a rank's copies, newest first.
  std::vector<fs::path> copies_of(int rank) const {
    std::vector<std::pair<std::int64_t, fs::path>> found;
    for (const auto& entry : fs::recursive_directory_iterator(run_ / "disk")) {
      if (entry.path().parent_path().filename() == "other" || entry.path().extension() != ".json" ||
          entry.path().string().find("/history/") != std::string::npos ||
          !entry.path().filename().string().starts_with(concat("rank-0000", rank)))
        continue;
      found.emplace_back(json_of(read_file(entry.path()))["step"].get<std::int64_t>(),
                         fs::path(entry.path()).replace_extension("safetensors"));
    }
    std::sort(found.rbegin(), found.rend());
    std::vector<fs::path> paths;
    for (auto& [step, path] : found) paths.push_back(std::move(path));
    return paths;
  }
  static std::int64_t step_of(const fs::path& copy) {
    return json_of(read_file(fs::path(copy).replace_extension("json")))["step"].get<std::int64_t>();
  }
  // The folder of the run on the disk.
  fs::path folder() const { return run_ / "disk" / names_in(run_ / "disk").front(); }
  // The files of copies that were set aside.
  std::vector<std::string> aside() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::recursive_directory_iterator(folder() / "history")) {
      if (entry.is_regular_file()) names.push_back(entry.path().filename().string());
    }
    std::sort(names.begin(), names.end());
    return names;
  }
  Json last_attempt() const { return json_of(run_.run("status out --json").out)["attempts"].back(); }
  std::string log_of(int rank) const { return read_file(run_ / concat("out/logs/rank-0000", rank, ".log")); }
  void expect_reference() const { EXPECT_TRUE(same_outcome(outcome_of(run_ / "out"), outcome_of(run_ / "reference"))); }

  static constexpr const char* kOptions =
      "--checkpoint.interval=0 --checkpoint.memory_every=2 --training.steps=40 --training.global_batch_size=16 ";
  TinyRun run_;
};

TEST_F(LocalDir, ARunGoesOnAfterAllHostsLostPower) {
  make_reference();
  lose_power_with_two_copies();
  ASSERT_FALSE(HasFatalFailure());
  fs::create_directories(run_ / "disk/other");
  write_text(run_ / "disk/other/rank-00000.0.json", "of somebody else");
  const std::int64_t common = std::min(step_of(copies_of(0)[0]), step_of(copies_of(1)[0]));
  const ProgramResult result = run_.run(command());
  ASSERT_EQ(result.code, 0) << result.err;
  expect_reference();
  EXPECT_EQ(last_attempt()["from_step"], common);
  EXPECT_GE(common, 6);
  EXPECT_EQ(last_attempt()["from"], "local disk");
  EXPECT_TRUE(says(log_of(0), concat("resuming after step ", common, " from disk/out-"))) << log_of(0);
  EXPECT_EQ(read_file(run_ / "disk/other/rank-00000.0.json"), "of somebody else");
  for (const auto& entry : fs::recursive_directory_iterator(run_ / "disk")) {
    EXPECT_FALSE(entry.path().filename().string().starts_with("mark-")) << entry.path();
  }
}

// Each rank then goes on from its older copy, because all must have the same step.
TEST_F(LocalDir, ADamagedCopyGivesWay) {
  make_reference();
  lose_power_with_two_copies();
  ASSERT_FALSE(HasFatalFailure());
  const fs::path newest = copies_of(1)[0];
  const std::int64_t damaged = step_of(newest);
  flip_bit(newest, fs::file_size(newest) / 2, 2);
  const ProgramResult result = run_.run(command());
  ASSERT_EQ(result.code, 0) << result.err;
  expect_reference();
  EXPECT_LT(last_attempt()["from_step"].get<std::int64_t>(), damaged);
  EXPECT_EQ(last_attempt()["from"], "local disk");
  const std::string words = concat("the snapshot of step ", damaged, " on the local disk cannot be used: rank 1: disk/out-");
  EXPECT_TRUE(says(log_of(0), words) || step_of(newest) > damaged) << log_of(0);
}

// The second rank lost power in the middle of a copy, and its other copy cannot be read: both say so, and the run begins with
// what is left, which is nothing.
// The copies of step 20 are older than the only checkpoint, so they count only because it is damaged.
TEST_F(LocalDir, ADamagedCheckpointGivesWayToOlderCopies) {
  const std::string options =
      " --checkpoint.memory_every=20 --checkpoint.interval=21 --checkpoint.keep_latest_k=0 --training.steps=80";
  Process process(command(options), run_.path());
  ASSERT_TRUE(process.read_to_step(30));
  const pid_t first = run_.pid_of_rank(0), second = run_.pid_of_rank(1);
  ASSERT_GT(std::min(first, second), 1);
  for (const pid_t pid : {parent_of(first), first, second}) signal_process(pid, SIGKILL);
  process.wait();
  ASSERT_EQ(step_of(copies_of(0)[0]), 20);
  const fs::path checkpoint = run_ / "out/checkpoints/step-00000021", data = checkpoint / "rank-00000.safetensors";
  flip_bit(data, fs::file_size(data) / 2, 2);

  const ProgramResult result = run_.run(command(options));
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_TRUE(says(log_of(0), "the damaged checkpoint of step 21 is now out/checkpoints/damaged/step-00000021")) << log_of(0);
  EXPECT_EQ(last_attempt()["from_step"], 20);
  EXPECT_EQ(last_attempt()["from"], "local disk");
  EXPECT_TRUE(fs::exists(run_ / "out/checkpoints/damaged/step-00000021"));
  EXPECT_TRUE(fs::exists(checkpoint));
  EXPECT_TRUE(fs::exists(run_ / "out/checkpoints/step-00000020")) << "saved at once, because there was no other";
  ASSERT_EQ(run_.run(concat("launch -n 2 -- train run.toml --metrics.tensorboard=false --run.output_dir=reference ", kOptions,
                            "--training.steps=80"))
                .code,
            0);
  expect_reference();
}

TEST_F(LocalDir, PartialAndUnreadableCopiesGiveWay) {
  make_reference();
  lose_power_with_two_copies();
  const std::vector<fs::path> copies = copies_of(1);
  ASSERT_EQ(copies.size(), 2u);
  fs::remove(fs::path(copies[0]).replace_extension("json"));
  write_text(fs::path(copies[1]).replace_extension("json"), "{");
  const ProgramResult result = run_.run(command());
  ASSERT_EQ(result.code, 0) << result.err;
  expect_reference();
  EXPECT_EQ(last_attempt()["from_step"], 0);
  const std::string log = log_of(1);
  EXPECT_TRUE(says(log, "this copy of a snapshot is not complete")) << log;
  EXPECT_TRUE(says(log, "this copy of a snapshot cannot be used: disk/out-")) << log;
  EXPECT_TRUE(says(log_of(0), ", because rank 1 has none\n")) << log_of(0);
  EXPECT_EQ(aside().size(), 4u) << "the copies of rank 0";
}

// Nothing of the copies goes, and no step is done again, before somebody has said so.
TEST_F(LocalDir, AStartThatCannotUseNewerCopiesIsRefused) {
  lose_power_with_two_copies();
  ASSERT_FALSE(HasFatalFailure());
  const std::vector<std::string> files = names_in(folder());
  const std::string metrics = read_file(run_ / "out/metrics.jsonl");
  const std::string there = concat("disk/", folder().filename().string(), ": a copy of step ",
                                   std::max(step_of(copies_of(0)[0]), step_of(copies_of(1)[0])),
                                   " is there, and this start would go on from the beginning");
  const auto is_refused = [&](const ProgramResult& result, const std::string& way) {
    EXPECT_EQ(result.code, 2) << result.err;
    EXPECT_TRUE(says(result.err, there)) << result.err;
    EXPECT_TRUE(says(result.err, way)) << result.err;
    EXPECT_EQ(names_in(folder()), files);
    EXPECT_EQ(read_file(run_ / "out/metrics.jsonl"), metrics);
  };
  is_refused(run_.run(command("", 1)), "start with 2 ranks, not 1; with --until ");
  is_refused(run_.run(command("--parallel.tensor=2")), "parallel.tensor = 1, not 2");
  is_refused(run_.run(command("--checkpoint.local_dir=")), "start with --checkpoint.local_dir=disk;");
  is_refused(run_.train(concat(kOptions, "--checkpoint.local_dir=disk")),
             "start with `octet launch --supervise`, and with 2 ranks");

  const ProgramResult aside_allowed = run_.run(command("--run.set_aside=true", 1));
  ASSERT_EQ(aside_allowed.code, 0) << aside_allowed.err;
  EXPECT_EQ(last_attempt()["from_step"], 0);
  std::vector<std::string> copies = files;
  std::erase(copies, "run.txt");
  EXPECT_EQ(aside(), copies);
  EXPECT_EQ(read_file(run_ / "out/history" / names_in(run_ / "out/history").front() / "metrics.jsonl"), metrics);
}

// A disk that is not mounted looks like a new one, and so does that of a run folder that was moved.
TEST_F(LocalDir, ADiskWithoutTheCopiesOfTheRunIsRefused) {
  make_reference();
  lose_power_with_two_copies();
  ASSERT_FALSE(HasFatalFailure());
  const std::string name = folder().filename().string();
  fs::rename(run_ / "disk", run_ / "away");
  for (int tries = 0; tries < 2; ++tries) {
    const ProgramResult result = run_.run(command());
    EXPECT_EQ(result.code, 2) << result.err;
    EXPECT_TRUE(says(result.err, "no host has any there; this start would go on from the beginning. Is a disk not mounted?"))
        << result.err;
  }
  fs::remove_all(run_ / "disk");
  fs::rename(run_ / "away", run_ / "disk");

  fs::rename(run_ / "out", run_ / "moved");
  const ProgramResult moved = run_.run(command("--run.output_dir=moved"));
  EXPECT_EQ(moved.code, 2) << moved.err;
  const std::size_t at = moved.err.find("If the run folder was moved, move the files of its former folder there to moved-");
  ASSERT_NE(at, std::string::npos) << moved.err;
  const std::string now = moved.err.substr(moved.err.find("moved-", at), std::string("moved-1a2b3c4d").size());
  for (const std::string& file : names_in(run_ / "disk" / name))
    fs::rename(run_ / "disk" / name / file, run_ / "disk" / now / file);
  const ProgramResult result = run_.run(command("--run.output_dir=moved"));
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_TRUE(same_outcome(outcome_of(run_ / "moved"), outcome_of(run_ / "reference")));
  EXPECT_EQ(json_of(run_.run("status moved --json").out)["attempts"].back()["from"], "local disk");
}

// A supervisor does not wait for a person. The restart that begins without the copies keeps them.
TEST_F(LocalDir, ARestartThatCannotUseNewerCopiesSetsThemAside) {
  if (faults_library().empty()) GTEST_SKIP() << "no fault injection here";
  lose_power_with_two_copies();
  ASSERT_FALSE(HasFatalFailure());
  std::vector<std::string> copies = names_in(folder());
  std::erase(copies, "run.txt");
  const std::string on = (run_ / "on").string(), log = (run_ / "faults.log").string();
  write_text(on, "");
  Process process(command("", 1), run_.path(), "exec " + with_faults(concat("open */corpus.idx 1 hang while ", on)));
  for (int tries = 0; tries < 3000 && !fs::exists(log); ++tries) ::usleep(10'000);
  fs::remove(on);
  signal_process(run_.pid_of_rank(0), SIGKILL);
  const ProgramResult result = process.wait();
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_TRUE(says(log_of(0), "start with 2 ranks, not 1")) << log_of(0);
  EXPECT_TRUE(says(log_of(0), "It does so, because it is a restart of the same job")) << log_of(0);
  EXPECT_EQ(aside(), copies);
}

// Both lists of each rank cannot be read at first. They are read again, and no copy is deleted.
TEST_F(LocalDir, ADiskThatIsAwayForAMomentCostsNothing) {
  if (faults_library().empty()) GTEST_SKIP() << "no fault injection here";
  make_reference();
  lose_power_with_two_copies();
  ASSERT_FALSE(HasFatalFailure());
  const std::int64_t common = std::min(step_of(copies_of(0)[0]), step_of(copies_of(1)[0]));
  const ProgramResult result = run_.run(command(), "exec " + with_faults("open */disk/*/rank-*.json 1 EIO"));
  ASSERT_EQ(result.code, 0) << result.err;
  expect_reference();
  EXPECT_EQ(last_attempt()["from_step"], common);
  EXPECT_EQ(last_attempt()["from"], "local disk");
  EXPECT_TRUE(says(log_of(1), "Input/output error; trying again for 60 s")) << log_of(1);
}

TEST_F(LocalDir, ThePlanSaysWhatItTakes) {
  const ProgramResult plan = run_.train("--dry-run --checkpoint.local_dir=disk");
  ASSERT_EQ(plan.code, 0) << plan.err;
  EXPECT_TRUE(says(plan.out, "two snapshots of this rank take ")) << plan.out;
  EXPECT_TRUE(says(plan.out, " in checkpoint.local_dir = disk")) << plan.out;
}

TEST_F(LocalDir, AFullDiskIsAWarning) {
  if (faults_library().empty()) GTEST_SKIP() << "no fault injection here";
  const ProgramResult result = run_.run(command("--training.steps=60"), with_faults("write */disk/*.safetensors 3+ ENOSPC"));
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_TRUE(says(log_of(0), "has no copy in checkpoint.local_dir: disk/out-")) << log_of(0);
  EXPECT_TRUE(says(log_of(0), "No space left on device")) << log_of(0);
}

// The disk of a host dies, and later a rank. The state is in memory, so the run goes on without new copies.
TEST_F(LocalDir, ADiskThatFailsDoesNotEndTheRun) {
  if (faults_library().empty()) GTEST_SKIP() << "no fault injection here";
  make_reference();
  const std::string broken = (run_ / "broken").string();
  Process process(command(), run_.path(), "exec " + with_faults(concat("open,read,write */disk/* 1+ EIO while ", broken)));
  ASSERT_TRUE(process.read_to_step(8));
  write_text(broken, "");
  ASSERT_TRUE(process.read_to_step(12));
  signal_process(run_.pid_of_rank(1), SIGKILL);
  const ProgramResult result = process.wait();
  ASSERT_EQ(result.code, 0) << result.err;
  expect_reference();
  EXPECT_EQ(last_attempt()["from"], "memory");
  for (const int rank : {0, 1}) {
    const std::string words = "Input/output error; checkpoint.local_dir may hold no new copy of this rank's snapshots\n";
    EXPECT_TRUE(says(log_of(rank), words)) << log_of(rank);
  }
}

TEST_F(LocalDir, RefusesWhatCannotWork) {
  const ProgramResult none = run_.run(command("--checkpoint.memory_every=0"));
  EXPECT_EQ(none.code, 2);
  EXPECT_TRUE(says(none.err, "checkpoint.local_dir with checkpoint.memory_every = 0")) << none.err;
  write_text(run_ / "file", "");
  const ProgramResult file = run_.run(command("--checkpoint.local_dir=file"));
  EXPECT_EQ(file.code, 2) << file.err;
  EXPECT_TRUE(says(file.err, "checkpoint.local_dir = file: ")) << file.err;
  const ProgramResult alone = run_.train("--checkpoint.local_dir=disk --training.steps=2");
  EXPECT_EQ(alone.code, 0);
  EXPECT_TRUE(says(alone.err, "checkpoint.local_dir gets no copies: only `octet launch --supervise`")) << alone.err;
}

}  // namespace
}  // namespace octet::testing
