// A history that cannot be read is never taken for none: errors that may pass are tried again, others end the run, and nothing is
// touched. The same holds for a corpus.
#include "octet/checkpoint/steps.h"
#include "support/faults.h"
#include "support/tiny_run.h"

namespace octet::testing {
namespace {

namespace fs = std::filesystem;

// Every file below a folder with its bytes.
std::map<std::string, std::string> files_below(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    const std::string name = fs::relative(entry.path(), folder).string();
    files[name] = entry.is_regular_file() ? read_file(entry.path()) : "a folder";
  }
  return files;
}

// A run of 8 steps with the checkpoints of steps 4 and 8, which more steps would continue.
class Unreadable : public Faults {
 protected:
  void SetUp() override {
    Faults::SetUp();
    if (IsSkipped()) return;
    ASSERT_EQ(run_.train(kOptions).code, 0);
    before_ = files_below(run_ / "out");
  }
  ProgramResult go_on(const std::string& rules, const std::string& options = "") const {
    fs::remove(run_ / "faults.log");
    return run_.run("train run.toml " + kOptions + "--training.steps=12 " + options, failing(rules));
  }
  bool happened() const { return fs::exists(run_ / "faults.log") && !read_file(run_ / "faults.log").empty(); }
  // The same files with the same bytes.
  void untouched() const {
    const auto after = files_below(run_ / "out");
    for (const auto& [name, bytes] : before_) {
      ASSERT_TRUE(after.contains(name)) << name;
      EXPECT_TRUE(after.at(name) == bytes) << name;
    }
    EXPECT_EQ(after.size(), before_.size());
  }

  static inline const std::string kOptions =
      "--training.steps=8 --checkpoint.interval=4 --metrics.tensorboard=false --lr_scheduler.decay=constant ";
  TinyRun run_;
  std::map<std::string, std::string> before_;
};

TEST_F(Unreadable, WhatPassesCostsNothing) {
  for (const std::string rule :
       {"opendir */out/checkpoints 1 EIO", "readdir */out/checkpoints 2 ESTALE", "stat */out/checkpoints 1-2 ETIMEDOUT",
        "open *step-00000008/manifest.json 1 EINTR", "read *step-00000008/manifest.json 1 EIO",
        "open *step-00000008/rank-00000.safetensors 1 ESTALE", "read *step-00000008/rank-00000.safetensors 5-6 EIO",
        "read *step-00000008/rank-00000.safetensors 70+ short", "open */corpus.idx 1 ESTALE", "open */corpus.bin 1 EIO",
        "read */corpus.json 1 EIO", "read */corpus.bin 3-4 EIO", "read */corpus.checked 1 EIO"}) {
    SCOPED_TRACE(rule);
    fs::remove_all(run_ / "again");
    fs::copy(run_ / "out", run_ / "again", fs::copy_options::recursive);
    std::string here = rule;
    if (const std::size_t at = here.find("/out/"); at != std::string::npos) here.replace(at, 5, "/again/");
    const ProgramResult result = go_on(here, "--run.output_dir=again");
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_TRUE(happened());
    EXPECT_NE(result.err.find("resuming after step 8 from again/checkpoints/step-00000008"), std::string::npos) << result.err;
    if (rule.find("short") == std::string::npos && rule.find("EINTR") == std::string::npos) {
      EXPECT_NE(result.err.find("; trying again for 60 s"), std::string::npos) << result.err;
    }
    EXPECT_EQ(metrics_of(run_ / "again").size(), 12u);
    EXPECT_FALSE(fs::exists(run_ / "again/checkpoints/damaged"));
  }
}

TEST_F(Unreadable, WhatDoesNotPassEndsTheRunAndTouchesNothing) {
  struct Case {
    std::string rule, words;
  };
  for (const auto& [rule, words] : std::vector<Case>{
           {"opendir */out/checkpoints 1+ EIO", "out/checkpoints: cannot list: Input/output error, also after 0.2 s"},
           {"readdir */out/checkpoints 1+ EIO", "out/checkpoints: cannot list: Input/output error, also after 0.2 s"},
           {"stat */out/checkpoints 1+ EIO", "out/checkpoints: Input/output error, also after 0.2 s"},
           {"open *step-00000008/manifest.json 1+ EIO", "step-00000008/manifest.json: Input/output error, also after 0.2 s"},
           {"read *step-00000008/manifest.json 1+ ESTALE", "step-00000008/manifest.json: cannot read: Stale file handle, also"},
           {"open *step-00000008/rank-00000.safetensors 1+ EIO", "rank-00000.safetensors: Input/output error, also after 0.2 s"},
           {"read *step-00000008/rank-00000.safetensors 9+ EIO", "rank-00000.safetensors: cannot read: Input/output error, also"},
           {"opendir */out/checkpoints 1 EACCES", "out/checkpoints: cannot list: Permission denied"},
           {"open *step-00000008/manifest.json 1 EACCES", "step-00000008/manifest.json: Permission denied"},
           {"open *step-00000008/rank-00000.safetensors 1 EMFILE", "rank-00000.safetensors: Too many open files"},
           {"open */corpus.bin 1 EACCES", "corpus.bin: Permission denied"},
           {"stat */out/metrics.jsonl 1+ EIO", "out/metrics.jsonl: Input/output error"},
           {"read */out/metrics.jsonl 1+ EIO", "out/metrics.jsonl: cannot read: Input/output error"},
       }) {
    SCOPED_TRACE(rule);
    const ProgramResult result = go_on(rule, "--checkpoint.retry_s=0.2");
    EXPECT_EQ(result.code, 76) << result.err;
    EXPECT_TRUE(happened());
    EXPECT_NE(result.err.find(words), std::string::npos) << result.err;
    untouched();
  }
}

TEST_F(Unreadable, ACorpusEndsTheRunBetweenTwoSteps) {
  const ProgramResult result = go_on("read */corpus.bin 3+ EIO", "--checkpoint.retry_s=0.2");
  EXPECT_EQ(result.code, 76);
  EXPECT_NE(result.err.find("octet: corpus.bin: cannot read: Input/output error, also after 0.2 s"), std::string::npos) << result.err;
  EXPECT_EQ(run_.train(kOptions + "--training.steps=12").code, 0);
}

// A file system that is not mounted looks like an empty folder. run.json knows better.
TEST_F(Unreadable, CheckpointsThatHaveGoneAreMissed) {
  fs::rename(run_ / "out/checkpoints", run_ / "elsewhere");
  before_ = files_below(run_ / "out");
  EXPECT_TRUE(refused(run_.train(kOptions), 76,
                      "out/checkpoints: no checkpoint is there, but out/run.json says that the one of step 8", "mounted",
                      "--run.set_aside=true"));
  untouched();
  fs::rename(run_ / "elsewhere", run_ / "out/checkpoints");
  EXPECT_EQ(run_.train(kOptions).code, 0);
}

TEST_F(Unreadable, AnotherCommandSaysWhatItCannotRead) {
  for (const std::string command : {"generate --model out/checkpoints/step-00000008 --prompt a", "report out",
                                    "convert export --checkpoint out/checkpoints/step-00000008 --output new"}) {
    SCOPED_TRACE(command);
    const std::string file = command == "report out" ? "*/out/metrics.jsonl" : "*/step-00000008/manifest.json";
    const ProgramResult result = run_.run(command, failing("stat,open " + file + " 1+ EACCES"));
    EXPECT_EQ(result.code, 76) << result.err;
    EXPECT_NE(result.err.find("Permission denied"), std::string::npos) << result.err;
  }
  fs::create_directory(run_ / "texts");
  write_text(run_ / "text.txt", "Some words.");
  fs::create_symlink("../text.txt", run_ / "texts/link.txt");
  const ProgramResult prepare = run_.run("data prepare --input texts --output new/corpus", failing("stat */texts/link.txt 1+ EIO"));
  EXPECT_EQ(prepare.code, 76) << "a text that cannot be looked at is not left out:\n" << prepare.err;
  EXPECT_NE(prepare.err.find("texts/link.txt: Input/output error"), std::string::npos) << prepare.err;
  const ProgramResult convert = run_.run("convert import --input out/model --output new", failing("stat */new 1+ EACCES"));
  EXPECT_EQ(convert.code, 2) << "another output helps: " << convert.err;
  EXPECT_NE(convert.err.find("new: Permission denied"), std::string::npos) << convert.err;
}

}  // namespace
}  // namespace octet::testing
