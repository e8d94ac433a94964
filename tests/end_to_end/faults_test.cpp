// Tests with disks that fail: what the program prints, and what is still there afterwards.
#include "support/faults.h"

#include "octet/checkpoint/steps.h"
#include "support/tiny_run.h"

namespace octet::testing {
namespace {

namespace fs = std::filesystem;

const std::string kShortRun = "train run.toml --training.steps=8 --checkpoint.interval=2 --checkpoint.keep_latest_k=1 ";

std::vector<std::int64_t> steps_in(const fs::path& run) {
  std::vector<std::int64_t> steps;
  for (const checkpoint::StepDirectory& found : checkpoint::find_checkpoints(run / "checkpoints")) steps.push_back(found.step);
  return steps;
}

// Checks that the fault happened and that the run reports it in these words.
::testing::AssertionResult told(const TinyRun& run, const ProgramResult& result, const std::string& fault,
                                const std::string& words) {
  const fs::path log = run / "faults.log";
  const std::string happened = fs::exists(log) ? read_file(log) : "";
  if (happened.find(fault) == std::string::npos)
    return ::testing::AssertionFailure() << "no fault " << fault << ", but:\n" << happened;
  if (result.err.find(words) == std::string::npos)
    return ::testing::AssertionFailure() << "lacks \"" << words << "\":\n" << result.err;
  return ::testing::AssertionSuccess();
}

// The folder is flushed once in each save. After this fault, the checkpoint of step 2 is the last that is certain to be on the
// disk, so later saves must not delete it.
TEST_F(Faults, AFolderThatIsNotFlushedFailsTheSaveAndPrunesNothing) {
  const TinyRun run;
  ASSERT_EQ(run.run(kShortRun + "--run.output_dir=reference").code, 0);
  EXPECT_EQ(steps_in(run / "reference"), std::vector<std::int64_t>({8}));

  const ProgramResult result = run.run(kShortRun, failing("fsync */out/checkpoints 2+ EIO"));
  EXPECT_EQ(result.code, 1) << result.err;
  EXPECT_TRUE(told(run, result, "fsync ", "out/checkpoints: cannot flush this folder to disk: Input/output error"));
  EXPECT_NE(result.err.find("the checkpoint of step 4 is not saved"), std::string::npos) << result.err;
  EXPECT_NE(result.err.find("training goes on with the older ones"), std::string::npos) << result.err;
  EXPECT_EQ(steps_in(run / "out").back(), 2);

  // Once the disk works again, the run ends as if nothing had happened and removes old checkpoints.
  const ProgramResult later = run.run(kShortRun + "--resume out/checkpoints/step-00000002 --run.set_aside=true");
  EXPECT_EQ(later.code, 0) << later.err;
  EXPECT_EQ(steps_in(run / "out"), std::vector<std::int64_t>({8}));
  EXPECT_TRUE(same_outcome(outcome_of(run / "out"), outcome_of(run / "reference")));
}

// A failure in the first save: the run prints the reason, goes on, and ends with the newest checkpoint.
TEST_F(Faults, AFailedSaveTellsTheReasonOfTheDisk) {
  const TinyRun run;
  struct Case {
    std::string rule, words;
  };
  for (const auto& [rule, words] : std::vector<Case>{
           {"fsync *rank-00000.safetensors* 1 EIO", "cannot flush to disk: Input/output error"},
           {"close *rank-00000.safetensors* 1 EDQUOT", "cannot close: Disk quota exceeded"},
           {"write *rank-00000.safetensors* 1 ENOSPC", "cannot write: No space left on device"},
           {"fsync *manifest.json* 1 EIO", "cannot flush to disk: Input/output error"},
           {"close *manifest.json* 1 EIO", "cannot close: Input/output error"},
           {"rename *manifest.json 1 EIO", "cannot rename: Input/output error"},
           {"rename *step-00000002 1 EIO", "cannot rename: Input/output error"},
           {"fsync *metrics.jsonl 1 EIO", "cannot sync: Input/output error"},
           {"fsync *step-00000002.tmp-* 2 EIO", "cannot flush this folder to disk: Input/output error"},
       }) {
    SCOPED_TRACE(rule);
    fs::remove_all(run / "out");
    fs::remove(run / "faults.log");
    const ProgramResult result = run.run(kShortRun, failing(rule));
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_TRUE(told(run, result, rule.substr(0, rule.find(' ')) + " /", words));
    EXPECT_NE(result.err.find("the checkpoint of step 2 is not saved"), std::string::npos) << result.err;
    EXPECT_EQ(steps_in(run / "out"), std::vector<std::int64_t>({8}));
  }
}

// Nothing is saved after it, so it ends the run.
TEST_F(Faults, TheLastSaveTellsWhatItTakes) {
  const TinyRun run;
  const ProgramResult result =
      run.run(concat(kShortRun, " --checkpoint.interval=0"), failing("write *rank-00000.safetensors* 1+ ENOSPC"));
  EXPECT_EQ(result.code, 1) << result.err;
  for (const char* words : {"No space left on device; this was the last save of this process; a checkpoint takes ", " are free",
                            ", and none is there yet"}) {
    EXPECT_NE(result.err.find(words), std::string::npos) << result.err;
  }
}

// The model is written after the last checkpoint, from which the same command exports it.
TEST_F(Faults, AnExportThatFailsSaysWhatIsSaved) {
  const TinyRun run;
  const ProgramResult result = run.run(kShortRun, failing("write */out/model/* 1+ ENOSPC"));
  EXPECT_EQ(result.code, 1) << result.err;
  EXPECT_TRUE(told(run, result, "write ",
                   "No space left on device; the checkpoint of step 8 is saved; make room or repair the disk; the same command "
                   "continues from there"));
  EXPECT_EQ(run.run(kShortRun).code, 0);
  EXPECT_TRUE(fs::exists(run / "out/model/model.safetensors"));
}

// A question that the disk does not answer for a moment is no reason to end a run.
TEST_F(Faults, WhetherABestCheckpointIsThereMayBeUnknown) {
  const TinyRun run;
  for (const std::string when : {"2", "4", "7"}) {
    fs::remove_all(run / "out");
    fs::remove(run / "faults.log");
    const ProgramResult result = run.run(kShortRun + "--evaluation.keep_best=true --evaluation.interval=2",
                                         failing("stat */out/checkpoints/step-0000000? " + when + " EIO"));
    EXPECT_EQ(result.code, 0) << when << result.err;
    EXPECT_FALSE(read_file(run / "faults.log").empty()) << when;
  }
}

// TensorBoard's events are on the disk before a checkpoint, but they are no reason to fail one.
TEST_F(Faults, EventsAreFlushedWithEachSave) {
  const TinyRun run;
  const ProgramResult result = run.run(kShortRun, failing("fsync *tfevents* 1+ EIO"));
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_TRUE(told(run, result, "fsync ", "cannot sync: Input/output error; training goes on"));
  EXPECT_EQ(steps_in(run / "out"), std::vector<std::int64_t>({8}));
}

// Each failed save says so; when too many have failed in a row the run ends instead of training on for nothing.
TEST_F(Faults, SavesThatFailInARowEndTheRun) {
  const TinyRun run;
  for (const std::string async : {"true", "false"}) {
    fs::remove_all(run / "out");
    fs::remove(run / "faults.log");
    const ProgramResult result =
        run.run("train run.toml --training.steps=1000 --checkpoint.interval=2 --checkpoint.async=" + async,
                failing("write *rank-00000.safetensors* 2+ ENOSPC"));
    EXPECT_EQ(result.code, 1) << result.err;
    EXPECT_TRUE(told(run, result, "write ", "step 4 is not saved"));
    for (const char* words : {"(failed save 1 of 3)", "(failed save 2 of 3)",
                              "No space left on device; 3 saves in a row failed, and checkpoint.max_failed_saves = 3"}) {
      EXPECT_NE(result.err.find(words), std::string::npos) << result.err;
    }
    EXPECT_EQ(steps_in(run / "out"), std::vector<std::int64_t>({2}));
    EXPECT_LE(metrics_of(run / "out").rbegin()->first, 12);
  }
  // One that succeeds in between begins the count anew. Each rule counts what the rules before it let through: saves 1, 3 and 6
  // fail.
  fs::remove_all(run / "out");
  const ProgramResult result =
      run.run("train run.toml --training.steps=20 --checkpoint.interval=2 --checkpoint.max_failed_saves=2",
              failing("fsync *rank-00000.safetensors* 1 EIO;fsync *rank-00000.safetensors* 2 EIO;"
                      "fsync *rank-00000.safetensors* 4 EIO"));
  EXPECT_EQ(result.code, 0) << result.err;
}

// A listing that fails after a save deletes nothing, and the save counts.
TEST_F(Faults, AFolderThatCannotBeListedIsNotPruned) {
  const TinyRun run;
  const ProgramResult result = run.run(kShortRun, failing("opendir */out/checkpoints 3+ EACCES"));
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_TRUE(told(run, result, "opendir ", "out/checkpoints: cannot list: Permission denied; no older checkpoint is deleted"));
  EXPECT_EQ(steps_in(run / "out"), std::vector<std::int64_t>({8, 6, 4, 2}));
}

// If a save fails on rank 0, it fails on all ranks. No rank waits for a save that does not come.
TEST_F(Faults, RanksFailASaveTogether) {
  const TinyRun run;
  const ProgramResult result =
      run.run("launch -n 2 -- " + kShortRun + "--parallel.shard=2", failing("fsync *metrics.jsonl 1 EIO"));
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_TRUE(told(run, result, "fsync ", "the checkpoint of step 2 is not saved: "));
  EXPECT_EQ(steps_in(run / "out"), std::vector<std::int64_t>({8}));
}

TEST_F(Faults, CommandsTellTheReasonOfTheSystem) {
  const TinyRun run;
  ASSERT_EQ(run.run(kShortRun).code, 0);
  write_text(run / "text.txt", "Some words.");
  const std::string prepare = "data prepare --input text.txt --output new/corpus", convert = "convert import --input out/model --output new/model",
                    launch = "launch -n 2 -- --version";
  struct Case {
    std::string command, rule, words;
  };
  for (const auto& [command, rule, words] : std::vector<Case>{
           {prepare, "fsync *corpus.bin* 1 EIO", "cannot flush to disk: Input/output error"},
           {prepare, "close *corpus.idx.* 1+ EIO", "cannot close: Input/output error"},
           {prepare, "rename *corpus.bin 1 EROFS", "new/corpus.bin: cannot rename: Read-only file system"},
           {prepare, "fsync */new 1 EIO", "new: cannot flush this folder to disk: Input/output error"},
           {convert, "rename *new/model 1 EIO", "new/model: cannot rename: Input/output error"},
           {launch, "pipe pipe 1 EMFILE", "cannot make a pipe: Too many open files"},
           {launch, "pipe pipe 2 ENFILE", "cannot make a pipe for a rank's output: Too many open files in system"},
       }) {
    SCOPED_TRACE(command + ": " + rule);
    fs::remove_all(run / "new");
    fs::remove(run / "faults.log");
    const ProgramResult result = run.run(command, failing(rule));
    EXPECT_EQ(result.code, 1) << result.err;
    EXPECT_TRUE(told(run, result, rule.substr(0, rule.find(' ')) + " ", words));
  }
}

// Another path helps, and no second try.
TEST_F(Faults, AnOutputThatCannotHaveItsNameIsAMistakeInTheArguments) {
  const TinyRun run;
  ASSERT_EQ(run.run(kShortRun).code, 0);
  const ProgramResult result = run.run("quantize --input out/model/model.safetensors --recipe fp8_current --role weight --output new.safetensors",
                                       failing("rename */new.safetensors 1 EROFS"));
  EXPECT_EQ(result.code, 2) << result.err;
  EXPECT_TRUE(told(run, result, "rename ", "new.safetensors: cannot rename: Read-only file system"));
}

// Tests of the rules themselves.
TEST_F(Faults, AWrongRuleIsRefused) {
  for (const char* rule :
       {"reed * 1 EIO", "read * 0 EIO", "read * 3-2 EIO", "read * 1 EWRONG", "read * 1", "read * 1 EIO until x"}) {
    const ProgramResult result = run_program("--version", ".", failing(rule, "unused"));
    EXPECT_EQ(result.code, 99) << rule;
    EXPECT_NE(result.err.find(rule), std::string::npos) << result.err;
  }
}

TEST_F(Faults, ARuleCountsWhileItsFileExists) {
  const TinyRun run;
  write_text(run / "rules", "read */text.txt 2 EIO while on\n\n");
  write_text(run / "text.txt", "Some words.");
  const std::string prepare = "data prepare --input text.txt --output corpus", how = failing("@rules");
  EXPECT_EQ(run.run(prepare, how).code, 0);
  write_text(run / "on", "");
  const ProgramResult result = run.run(prepare, how);
  EXPECT_EQ(result.code, 76) << result.err;
  EXPECT_TRUE(told(run, result, "read ", "text.txt: cannot read: Input/output error"));
}

}  // namespace
}  // namespace octet::testing
